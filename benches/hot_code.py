#!/usr/bin/env python3
"""Which code runs while a server is at work? Writes cli/hot_code.ld, by which the linker lays that code side by side.

A server at work runs some 300 KiB of its 6 MiB of code. Strewn over the whole, they keep 2 MiB in memory, as the kernel maps
code in windows of 64 KiB; side by side, a few hundred KiB (cli/build.rs).

Servers of several kinds run under valgrind's callgrind, which notes each function called from when they listen to when they
stop; clients write, read, change, expire and push out records meanwhile, over all of memcached's protocols. Run it again when
what is in the way of a request has changed; nothing breaks if nobody does: a function that the file does not name lies
among the others, a name that no function has is passed over.

Usage: hot_code.py [TODANA], a build of the release profile. Needs python3, valgrind and a minute.
"""

import os
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
SILENT = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
SCRIPT = os.path.join(HERE, "..", "cli", "hot_code.ld")
# In the order of the groups in the file: what most servers need comes first. No tree on disk: its map is larger than valgrind's
# address space.
SERVERS = [
    ("memory, full", ["-m", "8"]),
    ("memory, kept", ["-m", "0", "--data-dir", "{scratch}/data", "--sync", "100"]),
    ("ordered, in memory", ["-m", "0", "%"]),
    ("hash on disk", ["-m", "0", "{scratch}/records.hash"]),
]
# Where threads wait for each other: valgrind runs one at a time.
CONTENDED = ["_ZN11parking_lot10raw_*", "_ZN16parking_lot_core*"]


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def connect(port):
    for _ in range(600):
        try:
            return socket.create_connection(("127.0.0.1", port))
        except OSError:
            time.sleep(0.1)
    sys.exit("the server does not listen")


def converse(connection, request, ending):
    connection.sendall(request)
    reply = b""
    while not reply.endswith(ending):
        part = connection.recv(65536)
        if not part:
            sys.exit(f"the server hangs up after {request[:60]}")
        reply += part


def binary(opcode, key=b"", value=b"", extras=b""):
    body = extras + key + value
    return struct.pack(">BBHBBHIIQ", 0x80, opcode, len(key), len(extras), 0, 0, len(body), 0, 0) + body


def drive(port):
    """What clients do most. The same whenever it runs."""
    seed = 1
    text, other = connect(port), connect(port)
    for turn in range(6000):
        seed = seed * 6364136223846793005 + 1442695040888963407 & (1 << 64) - 1
        # Of a length that is hashed in one go, and of one that is not.
        key = b"key:%0*d" % (10 + turn % 2 * 30, seed >> 40)
        old = b"key:%010d" % (seed >> 33 & 0xFFF)
        value = b"v" * (turn * 7 % 3000)
        for name in (key, old):
            converse(text, b"set %s %d %d %d\r\n%s\r\n" % (name, turn % 3, turn % 4, len(value), value), b"\r\n")
        converse(text, b"get %s\r\n" % old, b"END\r\n")
        if turn % 8:
            continue
        converse(text, b"get %s %s absent\r\n" % (key, old), b"END\r\n")
        converse(text, b"gets %s\r\n" % key, b"END\r\n")
        converse(text, b"gat 100 %s\r\n" % old, b"END\r\n")
        converse(text, b"touch %s 60\r\n" % old, b"\r\n")
        converse(text, b"set counter 0 0 1\r\n7\r\n", b"\r\n")
        converse(text, b"incr counter %d\r\n" % turn, b"\r\n")
        converse(text, b"decr counter 3\r\n", b"\r\n")
        converse(text, b"delete %s\r\n" % key, b"\r\n")
        for word in (b"add", b"replace", b"append", b"prepend"):
            converse(text, b"%s %s 0 0 8\r\n12345678\r\n" % (word, old), b"\r\n")
        converse(text, b"mg %s v f t s k O7 c\r\n" % old, b"\r\n")
        converse(text, b"ms %s 4 T90 F5 c\r\nmeta\r\n" % key, b"\r\n")
        converse(text, b"ma counter N0 J1 D2 v\r\n", b"\r\n")
        converse(text, b"md %s q\r\nmn\r\n" % key, b"MN\r\n")
        # Whole packets, with an answer each and no more.
        store = struct.pack(">II", 5, 50)
        for request in (
            binary(1, key, value[:500], store), binary(0, key), binary(0, b"absent"), binary(12, key), binary(4, key),
            binary(5, b"number", b"", struct.pack(">QQI", 1, 2, 0)), binary(28, b"number", b"", struct.pack(">I", 99)),
        ):
            other.sendall(request)
            header = b""
            while len(header) < 24:
                header += other.recv(24 - len(header))
            left = struct.unpack_from(">I", header, 8)[0]
            while left:
                left -= len(other.recv(left))
    converse(text, b"set large 0 0 600000\r\n%s\r\n" % (b"l" * 600000), b"\r\n")
    converse(text, b"get large\r\n", b"END\r\n")
    converse(text, b"stats\r\n", b"END\r\n")
    text.close()
    other.close()
    # What has expired is swept, what is kept is written to disk.
    time.sleep(8)


def functions(todana, words, scratch):
    """The names, as the linker knows them, of what one server has called."""
    port = free_port()
    notes = os.path.join(scratch, "notes")
    command = ["valgrind", "--tool=callgrind", "--instr-atstart=no", "--demangle=no", f"--callgrind-out-file={notes}"]
    words = [word.format(scratch=scratch) for word in words]
    server = subprocess.Popen(
        command + [todana, "serve", "-l", "127.0.0.1", "-p", str(port), "-t", "2", *words],
        **SILENT,
    )
    try:
        connect(port).close()
        subprocess.run(["callgrind_control", "-i", "on", str(server.pid)], check=True, **SILENT)
        drive(port)
        subprocess.run(["callgrind_control", "-i", "off", str(server.pid)], check=True, **SILENT)
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait()
    with open(notes) as lines:
        return set(re.findall(r"^c?fn=\(\d+\) ([^'\s]+)", lines.read(), re.M))


def pattern(symbol):
    """A function, whichever compiler has named it: without what stands for a version of a crate."""
    legacy = re.fullmatch(r"(_ZN.*17h)[0-9a-f]{16}E(\.llvm\.\d+)?", symbol)
    if legacy:
        return f"{legacy[1]}*"
    if symbol.startswith("_R"):
        return re.sub(r"Cs[0-9A-Za-z]+_", "Cs*_", symbol.split(".llvm.")[0]) + "*"
    return None


def main():
    target = os.environ.get("CARGO_TARGET_DIR", os.path.join(HERE, "..", "target"))
    todana = sys.argv[1] if len(sys.argv) > 1 else os.path.join(target, "release", "todana")
    if not shutil.which("valgrind"):
        sys.exit("skipped: there is no valgrind")
    known = set(CONTENDED)
    groups = [("threads that wait", CONTENDED)]
    for name, words in SERVERS:
        with tempfile.TemporaryDirectory() as scratch:
            found = {pattern(symbol) for symbol in functions(todana, words, scratch)} - {None} - known
        known |= found
        groups.append((name, sorted(found)))
        print(f"{name}: {len(found)} more", file=sys.stderr)
    with open(SCRIPT, "w") as script:
        script.write("/* Code of a server at work, side by side. Written by benches/hot_code.py, which says why. */\n")
        script.write("SECTIONS\n{\n  .text.hot :\n  {\n")
        for name, patterns in groups:
            script.write(f"    /* {name} */\n")
            # What is said to be cold lies in sections of its own, and runs a first time all the same.
            script.writelines(f"    *(.text.{one} .text.unlikely.{one})\n" for one in patterns)
        script.write("  }\n}\nINSERT BEFORE .text;\n")


main()
