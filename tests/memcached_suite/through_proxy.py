#!/usr/bin/env python3
"""Starts servers and a proxy of them, with the command line of memcached.

memcached's own tests start the program `memcached-debug`. If it is this one, their requests go
through the proxy. The servers get the options of the test, except its addresses.

TODANA          the executable (default: target/fast/todana)
PROXY_SERVER    the command line of a server (default: TODANA as memcached)
PROXY_SERVERS   the number of servers (default 1)
"""

import ctypes
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
TODANA = os.environ.get("TODANA", os.path.join(ROOT, "target/fast/todana"))
SERVER = shlex.split(os.environ.get("PROXY_SERVER", shlex.quote(TODANA) + " as memcached"))
SERVERS = int(os.environ.get("PROXY_SERVERS", "1"))
# Options of the place at which the program listens, which is the proxy's here.
PLACES = {"-p": "port", "-s": "path", "-l": "address", "-U": "udp", "-a": "mask"}
PDEATHSIG = 1


def split(words):
    """Returns the options of the place, and all others."""
    place, others, words = {}, [], list(words)
    while words:
        word = words.pop(0)
        if word in PLACES and words:
            place[PLACES[word]] = words.pop(0)
        elif word[:2] in PLACES and len(word) > 2:
            place[PLACES[word[:2]]] = word[2:]
        else:
            others.append(word)
    return place, others


def start(command):
    """Starts a process that ends with this one, also if this one is killed."""
    libc = ctypes.CDLL(None)
    return subprocess.Popen(command, preexec_fn=lambda: libc.prctl(PDEATHSIG, signal.SIGKILL))


def main():
    words = sys.argv[1:]
    if any(word in ("-h", "-V", "-i", "--help", "--version") for word in words):
        os.execvp(SERVER[0], SERVER + words)
    place, others = split(words)
    folder = tempfile.mkdtemp(prefix="through-proxy.")
    sockets = [os.path.join(folder, "s%d" % number) for number in range(SERVERS)]
    children = [start(SERVER + others + ["-s", socket]) for socket in sockets]
    deadline = time.monotonic() + 30
    while not all(os.path.exists(socket) for socket in sockets):
        ended = [child.poll() for child in children if child.poll() is not None]
        if ended or time.monotonic() > deadline:
            sys.exit(ended[0] if ended else 1)
        time.sleep(0.01)
    if "path" in place:
        listen = "unix:%s mode=%s" % (place["path"], place.get("mask", "0700"))
    else:
        listen = "%s:%s" % (place.get("address", "127.0.0.1"), place.get("port", "11211"))
    servers = ", ".join('"unix:%s"' % socket for socket in sockets)
    config = os.path.join(folder, "proxy.toml")
    with open(config, "w") as file:
        file.write('listen = ["%s"]\n[pool.main]\nservers = [%s]\n' % (listen, servers))
        file.write('when-down = "error"\n[route]\ndefault = "main"\n')
    proxy = start([TODANA, "proxy", "--config", config])

    # A handler that waits for the proxy itself would wait for the wait that it interrupts.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda _number, _frame: sys.exit(0))
    try:
        sys.exit(proxy.wait())
    finally:
        for child in [proxy] + children:
            child.terminate()
        for child in [proxy] + children:
            child.wait()


main()
