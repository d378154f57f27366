"""Address, test values and waiting for the tests of the Python clients."""

import os
import socket
import time

import pytest

ADDRESS = os.environ["TODANA_ADDRESS"]
# Selects the protocol of clients that have both.
BINARY = os.environ.get("TODANA_PROTOCOL") == "binary"
HAS_ITEM_LIMIT = os.environ.get("TODANA_ITEM_LIMIT") != "none"
HOST, PORT = ADDRESS.rsplit(":", 1)
# Every client must transfer these values unchanged: all bytes, and text in the form of replies.
ALL_BYTES = bytes(range(256)) * 16
REPLIES = b"a\r\nEND\r\nVALUE x 0 1\r\n"


def seconds_left(key):
    """Returns the time to live that the server has stored.

    Returns -1 if the record does not expire, and None if there is no record.
    """
    with socket.create_connection((HOST, PORT), timeout=10) as connection:
        connection.sendall(b"mg %s t\r\n" % key.encode())
        reply = connection.makefile("rb").readline()
    return None if reply == b"EN\r\n" else int(reply.removeprefix(b"HD t"))


def about(seconds):
    """Returns a number that is equal to all times that differ by at most 100 seconds.

    Time passes between the calls, and clocks are rounded.
    """
    return pytest.approx(seconds, abs=100)


def eventually(holds):
    """Waits until `holds` returns true, for at most 10 seconds."""
    deadline = time.monotonic() + 10
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.05)
