"""The server under test, for the tests of the Python clients."""

import os
import socket
import time

import pytest

ADDRESS = os.environ["TODANA_ADDRESS"]
# For clients that speak two protocols.
BINARY = os.environ.get("TODANA_PROTOCOL") == "binary"
HAS_ITEM_LIMIT = os.environ.get("TODANA_ITEM_LIMIT") != "none"
HOST, PORT = ADDRESS.rsplit(":", 1)
# What every client has to carry: each byte, what looks like replies, and no text at all.
ALL_BYTES = bytes(range(256)) * 16
REPLIES = b"a\r\nEND\r\nVALUE x 0 1\r\n"


def seconds_left(key):
    """The time to live that the server has noted: -1 for none, None for no such record."""
    with socket.create_connection((HOST, PORT), timeout=10) as connection:
        connection.sendall(b"mg %s t\r\n" % key.encode())
        reply = connection.makefile("rb").readline()
    return None if reply == b"EN\r\n" else int(reply.removeprefix(b"HD t"))


def about(seconds):
    """Equal to what is left of these seconds, and to what the rounding of clocks adds."""
    return pytest.approx(seconds, abs=100)


def eventually(holds):
    """Waits for what takes a second or two of the server's time."""
    deadline = time.monotonic() + 10
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.05)
