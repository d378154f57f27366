"""Tests aiomcache (asyncio) with a running server. TODANA_ADDRESS is its address."""

import asyncio
import functools
import os
import time

import aiomcache
import pytest
from server import ALL_BYTES, HOST, PORT, REPLIES, about, seconds_left


def with_client(test):
    """Runs an asynchronous test with a client of an empty server."""

    @functools.wraps(test)
    def run():
        async def session():
            client = aiomcache.Client(HOST, int(PORT))
            await client.flush_all()
            await test(client)
            await client.close()

        asyncio.run(asyncio.wait_for(session(), timeout=60))

    # Otherwise pytest would search for a fixture with the name of the parameter.
    del run.__wrapped__
    return run


@with_client
async def test_any_bytes_come_back(client):
    for value in (b"value", b"", ALL_BYTES, REPLIES, os.urandom(1_000_000)):
        assert await client.set(b"key", value) is True
        assert await client.get(b"key") == value
    assert await client.get(b"absent") is None
    assert await client.get(b"absent", b"d") == b"d"


@with_client
async def test_a_value_above_the_limit_is_refused(client):
    with pytest.raises(aiomcache.ClientException, match="object too large for cache"):
        await client.set(b"large", b"x" * (2 << 20))
    assert await client.get(b"large") is None


@with_client
async def test_add_replace_append_prepend(client):
    assert await client.replace(b"k", b"1") is False
    assert await client.append(b"k", b"1") is False
    assert await client.prepend(b"k", b"1") is False
    assert await client.add(b"k", b"b") is True
    assert await client.add(b"k", b"x") is False
    assert await client.append(b"k", b"c") is True
    assert await client.prepend(b"k", b"a") is True
    assert await client.get(b"k") == b"abc"
    assert await client.replace(b"k", b"z") is True
    assert await client.get(b"k") == b"z"


@with_client
async def test_counting(client):
    with pytest.raises(aiomcache.ClientException, match="NOT_FOUND"):
        await client.incr(b"n")
    await client.set(b"n", b"10")
    assert await client.incr(b"n", 5) == 15
    assert await client.decr(b"n", 20) == 0
    await client.set(b"n", b"18446744073709551615")
    assert await client.incr(b"n", 2) == 1
    await client.set(b"word", b"word")
    with pytest.raises(aiomcache.ClientException, match="non-numeric"):
        await client.incr(b"word")


@with_client
async def test_compare_and_set(client):
    assert await client.cas(b"k", b"v", 1) is False
    assert await client.gets(b"k") == (None, None)
    await client.set(b"k", b"one")
    value, version = await client.gets(b"k")
    assert value == b"one" and version > 0
    await client.set(b"k", b"two")
    assert await client.cas(b"k", b"three", version) is False
    _, version = await client.gets(b"k")
    assert await client.cas(b"k", b"three", version) is True
    assert await client.get(b"k") == b"three"


@with_client
async def test_delete(client):
    assert await client.delete(b"k") is False
    await client.set(b"k", b"v")
    assert await client.delete(b"k") is True
    assert await client.get(b"k") is None


@with_client
async def test_many_at_once(client):
    keys = [b"key:%d" % n for n in range(500)]
    values = [b"%d" % n * (n % 7) for n in range(500)]
    # All calls share two connections.
    stored = [client.set(key, value) for key, value in zip(keys, values)]
    assert all(await asyncio.gather(*stored))
    assert await client.multi_get(*keys, b"absent") == (*values, None)


@with_client
async def test_time_to_live_and_touch(client):
    now = int(time.time())
    await client.set(b"k", b"v", exptime=now - 100)
    assert await client.get(b"k") is None
    await client.set(b"k", b"v")
    assert seconds_left("k") == -1
    await client.set(b"k", b"v", exptime=1000)
    assert seconds_left("k") == about(1000)
    await client.set(b"k", b"v", exptime=now + 4_000_000)
    assert seconds_left("k") == about(4_000_000)
    assert await client.touch(b"k", 500) is True
    assert seconds_left("k") == about(500)
    assert await client.get(b"k") == b"v"
    assert await client.touch(b"k", -1) is True
    assert await client.touch(b"k", 500) is False
    assert await client.get(b"k") is None


@with_client
async def test_long_keys_and_foreign_letters(client):
    for key in (b"k" * 250, "schlüssel:日本".encode()):
        assert await client.set(key, b"v") is True
        assert await client.get(key) == b"v"


@with_client
async def test_version_and_statistics(client):
    assert (await client.version()).count(b".") == 2
    await client.set(b"k", b"v")
    assert int((await client.stats())[b"curr_items"]) >= 1
    assert (await client.stats(b"settings"))[b"evictions"] == b"on"
