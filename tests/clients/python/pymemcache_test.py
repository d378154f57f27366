"""Tests pymemcache with a running server. TODANA_ADDRESS is its address."""

import os

import pytest
from pymemcache.client.base import Client
from pymemcache.exceptions import MemcacheClientError, MemcacheServerError
from server import ADDRESS, eventually


@pytest.fixture
def client():
    client = Client(ADDRESS, timeout=5, default_noreply=False)
    client.flush_all()
    yield client
    client.close()


def test_set_and_get(client):
    assert client.set("key", b"value") is True
    assert client.get("key") == b"value"
    assert client.get("absent") is None
    assert client.get("absent", default=b"d") == b"d"


def test_any_bytes_come_back(client):
    value = bytes(range(256)) * 16
    client.set("binary", value)
    assert client.get("binary") == value
    client.set("empty", b"")
    assert client.get("empty") == b""
    client.set("lines", b"a\r\nEND\r\nVALUE x 0 1\r\n")
    assert client.get("lines") == b"a\r\nEND\r\nVALUE x 0 1\r\n"


def test_values_of_a_megabyte(client):
    for size in (1 << 20) - 1024, 1048516, (2 << 20) - 1024:
        value = os.urandom(size)
        client.set("large", value)
        assert client.get("large") == value
    with pytest.raises(MemcacheServerError, match="object too large for cache"):
        client.set("large", b"x" * (2 << 20))
    assert client.get("large") is None


def test_flags_come_back(client):
    client.set("flagged", b"v", flags=4294967295)
    assert client.raw_command(b"get flagged", end_tokens=b"END\r\n").startswith(b"VALUE flagged 4294967295 1")


def test_add_replace_append_prepend(client):
    assert client.replace("k", b"1") is False
    assert client.append("k", b"1") is False
    assert client.add("k", b"b") is True
    assert client.add("k", b"x") is False
    assert client.append("k", b"c") is True
    assert client.prepend("k", b"a") is True
    assert client.get("k") == b"abc"
    assert client.replace("k", b"z") is True
    assert client.get("k") == b"z"


def test_counting(client):
    assert client.incr("n", 1) is None
    client.set("n", b"10")
    assert client.incr("n", 5) == 15
    assert client.decr("n", 20) == 0
    assert client.get("n") == b"0 "
    client.set("n", b"18446744073709551615")
    assert client.incr("n", 2) == 1
    client.set("word", b"word")
    with pytest.raises(MemcacheClientError, match="non-numeric"):
        client.incr("word", 1)


def test_compare_and_set(client):
    assert client.cas("k", b"v", b"1") is None
    client.set("k", b"one")
    value, version = client.gets("k")
    assert value == b"one" and int(version) > 0
    assert client.gets("k") == (value, version)
    client.set("k", b"two")
    assert client.cas("k", b"three", version) is False
    _, version = client.gets("k")
    assert client.cas("k", b"three", version) is True
    assert client.get("k") == b"three"


def test_delete(client):
    assert client.delete("k") is False
    client.set("k", b"v")
    assert client.delete("k") is True
    assert client.get("k") is None


def test_many_at_once(client):
    records = {f"key:{n}": str(n).encode() * (n % 7) for n in range(500)}
    assert client.set_many(records) == []
    assert client.get_many(list(records) + ["absent"]) == records
    versions = client.gets_many(["key:1", "key:2"])
    assert versions["key:1"][0] == b"1" and versions["key:1"][1] != versions["key:2"][1]
    assert client.delete_many(list(records)) is True
    assert client.get_many(list(records)) == {}


def test_time_to_live(client):
    client.set("short", b"v", expire=1)
    client.set("long", b"v", expire=1000)
    client.set("past", b"v", expire=-1)
    assert client.get("past") is None
    eventually(lambda: client.get("short") is None)
    assert client.get("long") == b"v"
    assert client.touch("long", expire=1) is True
    assert client.touch("absent", expire=1) is False
    eventually(lambda: client.get("long") is None)
    client.set("gat", b"v")
    # The client has no function for gat.
    assert client.raw_command(b"gat 1 gat", end_tokens=b"END\r\n") == b"VALUE gat 0 1\r\nv\r\n"
    eventually(lambda: client.get("gat") is None)


def test_noreply_keeps_the_replies_in_step(client):
    for n in range(100):
        client.set("quiet", str(n).encode(), noreply=True)
        client.incr("quiet", 1, noreply=True)
    assert client.get("quiet") == b"100"
    client.delete("quiet", noreply=True)
    assert client.get("quiet") is None


def test_unicode_keys_and_long_keys(client):
    utf8 = Client(ADDRESS, timeout=5, allow_unicode_keys=True, default_noreply=False)
    utf8.set("schlüssel:日本", b"v")
    assert utf8.get("schlüssel:日本") == b"v"
    client.set("k" * 250, b"v")
    assert client.get("k" * 250) == b"v"
    utf8.close()


def test_flush_version_stats(client):
    client.set("k", b"v")
    assert client.flush_all() is True
    assert client.get("k") is None
    assert client.version().count(b".") == 2
    stats = client.stats()
    assert stats[b"pid"] > 0
    assert client.stats("settings")[b"evictions"] in (b"on", True, 1)
    # memcached counts flushed records until it needs their memory, and only it has size classes.
    if "TODANA_SERVERS" in os.environ:
        assert stats[b"cmd_flush"] >= 3
        return
    assert stats[b"curr_items"] == 0
    client.set("k", b"v")
    assert client.stats("items")[b"items:1:number"] == 1
    assert client.stats("slabs")[b"1:chunk_size"] == 96
