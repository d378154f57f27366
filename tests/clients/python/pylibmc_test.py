"""Tests pylibmc (libmemcached) with a running server. TODANA_ADDRESS is its address.

TODANA_PROTOCOL selects the protocol: text or binary.
"""

import os

import pylibmc
import pytest
from server import ADDRESS, BINARY, HAS_ITEM_LIMIT, eventually


@pytest.fixture
def client():
    client = pylibmc.Client([ADDRESS], binary=BINARY, behaviors={"cas": True, "tcp_nodelay": True})
    client.flush_all()
    return client


def test_python_values_come_back(client):
    for value in ["text", b"bytes\x00\xff", 42, 2**40, True, {"a": [1, 2.5, None]}, "", b""]:
        assert client.set("key", value)
        assert client.get("key") == value
    assert client.get("absent") is None


def test_compressed_and_megabyte_values(client):
    text = "all work and no play " * 20_000
    assert client.set("text", text, min_compress_len=1000)
    assert client.get("text") == text
    value = os.urandom((1 << 20) - 1024)
    assert client.set("large", value)
    assert client.get("large") == value
    if HAS_ITEM_LIMIT:
        with pytest.raises(pylibmc.Error):
            client.set("large", b"x" * (2 << 20))


def test_add_replace_append_prepend(client):
    if BINARY:
        # The two protocols have different replies to this call.
        with pytest.raises(pylibmc.NotFound):
            client.replace("k", "1")
    else:
        assert client.replace("k", "1") is False
    assert client.add("k", "b") is True
    assert client.add("k", "x") is False
    assert client.append("k", "c") is True
    assert client.prepend("k", "a") is True
    assert client.get("k") == "abc"
    assert client.replace("k", "z") is True
    assert client.append("absent", "1") is False


def test_counting(client):
    with pytest.raises(pylibmc.NotFound):
        client.incr("n")
    client.set("n", 10)
    assert client.incr("n", 5) == 15
    assert client.decr("n") == 14
    assert client.get("n") == 14
    client.set_multi({"a": 1, "b": 2})
    client.incr_multi(["a", "b"], delta=10)
    assert client.get_multi(["a", "b"]) == {"a": 11, "b": 12}


def test_compare_and_set(client):
    client.set("k", "one")
    value, version = client.gets("k")
    assert value == "one"
    assert client.cas("k", "two", version) is True
    with pytest.raises(pylibmc.Error):
        client.cas("absent", "x", version)
    assert client.cas("k", "three", version) is False
    assert client.get("k") == "two"


def test_many_at_once(client):
    records = {f"key:{n}": f"value {n}" for n in range(1000)}
    assert client.set_multi(records) == []
    assert client.get_multi(list(records) + ["absent"]) == records
    assert client.delete_multi(list(records)) is True
    assert client.get_multi(list(records)) == {}


def test_time_to_live_and_touch(client):
    client.set("short", "v", time=1)
    client.set("long", "v", time=1000)
    eventually(lambda: client.get("short") is None)
    assert client.get("long") == "v"
    assert client.touch("long", 1) is True
    eventually(lambda: client.get("long") is None)


def test_delete_flush_stats(client):
    assert client.delete("k") is False
    client.set("k", "v")
    assert client.delete("k") is True
    client.set("k", "v")
    client.flush_all()
    assert client.get("k") is None
    ((_, stats),) = client.get_stats()
    stats = {(k.decode() if isinstance(k, bytes) else k): v for k, v in stats.items()}
    # The servers of a proxy are memcached, which counts flushed records until it needs memory.
    if "TODANA_SERVERS" in os.environ:
        assert int(stats["cmd_set"]) > 0
    else:
        assert int(stats["curr_items"]) == 0


def test_non_blocking_writes(client):
    eager = pylibmc.Client([ADDRESS], binary=BINARY, behaviors={"no_block": True})
    for n in range(2000):
        eager.set(f"b:{n}", n)
    assert eager.get("b:1999") == 1999
    eventually(lambda: client.get("b:0") == 0)
