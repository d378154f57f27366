"""Tests python-memcached with a running server. TODANA_ADDRESS is its address."""

import os
import time

import memcache
import pytest
from server import ADDRESS, ALL_BYTES, REPLIES, about, seconds_left

NOT_STORED = False


@pytest.fixture
def client():
    client = memcache.Client([ADDRESS], debug=1, socket_timeout=10, cache_cas=True, server_max_value_length=4 << 20)
    client.flush_all()
    yield client
    # The client reports a lost connection as misses. Only this attribute shows the loss.
    assert all(server.deaduntil == 0 for server in client.servers)
    client.disconnect_all()


def test_python_values_come_back(client):
    for value in ["text", b"bytes", 42, 2**80, {"a": [1, 2.5, None]}, "", b"", ALL_BYTES, REPLIES]:
        assert client.set("key", value)
        assert client.get("key") == value
    assert client.get("absent") is None
    assert client.get("absent", default="d") == "d"


def test_a_million_bytes_come_back(client):
    value = os.urandom(1_000_000)
    assert client.set("large", value)
    assert client.get("large") == value
    text = "all work and no play " * 50_000
    assert client.set("compressed", text, min_compress_len=1000)
    assert client.get("compressed") == text


def test_a_value_above_the_limit_is_refused(client):
    client.set("large", "old")
    assert client.set("large", b"x" * (2 << 20)) == NOT_STORED
    # The server has skipped the complete refused value, and has removed the old one.
    assert client.get("large") is None


def test_add_replace_append_prepend(client):
    assert client.replace("k", "1") == NOT_STORED
    assert client.append("k", "1") == NOT_STORED
    assert client.prepend("k", "1") == NOT_STORED
    assert client.add("k", "b")
    assert client.add("k", "x") == NOT_STORED
    assert client.append("k", "c")
    assert client.prepend("k", "a")
    assert client.get("k") == "abc"
    assert client.replace("k", "z")
    assert client.get("k") == "z"


def test_counting(client):
    assert client.incr("n") is None
    client.set("n", 10)
    assert client.incr("n", 5) == 15
    assert client.decr("n") == 14
    assert client.decr("n", 100) == 0
    client.set("n", "18446744073709551615")
    assert client.incr("n", 2) == 1


def test_compare_and_set(client):
    client.set("k", "one")
    assert client.gets("k") == "one"
    assert client.cas("k", "two")
    # The version is valid for one compare-and-set only.
    assert client.cas("k", "three") == NOT_STORED
    assert client.get("k") == "two"
    assert client.gets("k") == "two"
    client.delete("k")
    assert client.cas("k", "four") == NOT_STORED
    assert client.get("k") is None


def test_delete(client):
    assert client.set("k", "v")
    assert client.delete("k") == 1
    assert client.get("k") is None


def test_many_at_once(client):
    records = {f"key:{n}": f"value {n}" for n in range(500)}
    assert client.set_multi(records) == []
    assert client.get_multi([*records, "absent"]) == records
    assert client.delete_multi(list(records)) == 1
    assert client.get_multi(list(records)) == {}


def test_time_to_live_and_touch(client):
    now = int(time.time())
    for gone in (-1, now - 100):
        client.set("k", "v", time=gone)
        assert client.get("k") is None
    client.set("k", "v")
    assert seconds_left("k") == -1
    client.set("k", "v", time=1000)
    assert seconds_left("k") == about(1000)
    client.set("k", "v", time=now + 4_000_000)
    assert seconds_left("k") == about(4_000_000)
    assert client.touch("k", 500)
    assert seconds_left("k") == about(500)
    assert client.get("k") == "v"
    assert client.touch("k", -1)
    assert client.get("k") is None


def test_no_reply_keeps_the_replies_in_step(client):
    for n in range(100):
        client.set("quiet", n, noreply=True)
        client.incr("quiet", noreply=True)
    assert client.get("quiet") == 100
    client.delete("quiet", noreply=True)
    assert client.get("quiet") is None


def test_long_keys_and_foreign_letters(client):
    for key in ("k" * 250, "schlüssel:日本"):
        assert client.set(key, "v")
        assert client.get(key) == "v"


def test_flush_and_statistics(client):
    client.set("k", "v")
    client.flush_all()
    assert client.get("k") is None
    client.set("k", "v")
    ((_, stats),) = client.get_stats()
    assert int(stats["curr_items"]) >= 1
    # Size classes are those of one server.
    if "TODANA_SERVERS" in os.environ:
        return
    ((_, slabs),) = client.get_slab_stats()
    assert slabs["1"]["chunk_size"] == "96"
