"""Tests OpenSSL's TLS, alone and in pymemcache, with a running server.

TODANA_TLS_CA is the file of the server's certificate.
"""

import os
import socket
import ssl

import pytest
from pymemcache.client.base import Client
from server import ALL_BYTES, HOST, PORT

VERSIONS = [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3]


def context(version):
    context = ssl.create_default_context(cafile=os.environ["TODANA_TLS_CA"])
    context.minimum_version = context.maximum_version = version
    return context


def connect(context, session=None):
    plain = socket.create_connection((HOST, int(PORT)), timeout=10)
    return context.wrap_socket(plain, server_hostname="localhost", session=session)


@pytest.mark.parametrize("version", VERSIONS)
def test_client_library_works_over_tls(version):
    client = Client((HOST, int(PORT)), timeout=10, default_noreply=False, tls_context=context(version))
    client.flush_all()
    assert client.set("key", ALL_BYTES) is True
    assert client.get("key") == ALL_BYTES
    large = os.urandom(1_000_000)
    client.set("large", large)
    assert client.get_many(["key", "large", "absent"]) == {"key": ALL_BYTES, "large": large}
    assert client.set("n", "41") and client.incr("n", 1) == 42
    client.close()


@pytest.mark.parametrize("version", VERSIONS)
def test_sessions_are_resumed(version):
    own = context(version)
    with connect(own) as first:
        first.sendall(b"version\r\n")
        assert first.recv(100).startswith(b"VERSION ")
        assert not first.session_reused
        session = first.session
    with connect(own, session) as second:
        second.sendall(b"version\r\n")
        assert second.recv(100).startswith(b"VERSION ")
        assert second.session_reused


@pytest.mark.parametrize("version", VERSIONS)
def test_server_ends_the_tls_session(version):
    with connect(context(version)) as session:
        session.sendall(b"quit\r\n")
        # Without the server's close_notify, this call would raise an error.
        assert session.recv(100) == b""


def test_older_versions_are_refused():
    old = context(ssl.TLSVersion.TLSv1_2)
    old.set_ciphers("ALL:@SECLEVEL=0")
    old.minimum_version, old.maximum_version = ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1
    with pytest.raises((ssl.SSLError, ConnectionError)):
        connect(old)


def test_plain_text_gets_no_answer():
    with socket.create_connection((HOST, int(PORT)), timeout=10) as plain:
        plain.sendall(b"version\r\n")
        try:
            answer = plain.recv(100)
        except ConnectionError:
            answer = b""
        assert b"VERSION" not in answer
