"""What does Todana cost as a replacement of Kyoto Tycoon, compared with the original?

speed   The server's processor time per operation, as a ratio of Todana's to ktserver's, in
        alternating runs: sets and gets by RPC, and binary bulk requests of 1,000 new or existing
        records. There are two clients, and each server has two threads. Bar: 0.6.
memory  Todana's RssAnon with ten million records of 8 + 8 digits, which are loaded in key order by
        binary bulk requests. The databases are the default one, and the ordered one without expiry,
        plain and compressed. Bars: 135, 180 and 71 MB with values equal to their keys. For
        comparison, other values are measured, too.
waits   A thousand connections wait for a signal at once: the latency of another client's gets
        before and during the wait, RssAnon, and whether one signal reaches all of them. Bar: 10 MB.

Usage: kyoto.py TODANA KTSERVER [speed] [memory] [waits] [--records N] [--rounds N]
                [--memory-records N] [--waits N] [--rival-memory]
If KTSERVER is -, only Todana is measured. LD_LIBRARY_PATH must include the original's libraries.
Both servers listen on free ports of 127.0.0.1 and are stopped at the end.
"""

import argparse
import glob
import multiprocessing
import os
import random
import re
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import time

BULK = 1000
CLIENTS = 2
# The number of calls by RPC in a run.
CALLS = 100_000
SET, GET = 0xB8, 0xBA
FOREVER = (1 << 63) - 1
BARS_MB = {":": 135, "%#ktopts=p": 180, "%#ktopts=p#opts=c": 71}


def free_port():
    """Returns a free port.

    The system does not choose it, because the original accepts no port above 32767.
    """
    while True:
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", random.SystemRandom().randrange(20_000, 32_000)))
                return probe.getsockname()[1]
            except OSError:
                continue


class Server:
    """A server of Todana or of the original, started with the original's options."""

    def __init__(self, command, database, threads=CLIENTS):
        self.port = free_port()
        words = ["-host", "127.0.0.1", "-port", str(self.port), "-th", str(threads), "-le", database]
        self.log = tempfile.TemporaryFile()
        self.process = subprocess.Popen(command + words, stdout=self.log, stderr=self.log)
        for _ in range(200):
            try:
                self.connect().close()
                return
            except ConnectionRefusedError:
                time.sleep(0.05)
        self.stop()
        self.log.seek(0)
        sys.exit(f"{' '.join(command)} does not listen: {self.log.read().decode(errors='replace')}")

    def connect(self):
        connection = socket.create_connection(("127.0.0.1", self.port))
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connection

    def processor_us(self):
        """Returns the processor time of all threads, from the scheduler's statistics."""
        total = 0
        for path in glob.glob(f"/proc/{self.process.pid}/task/*/schedstat"):
            with open(path) as schedstat:
                total += int(schedstat.read().split()[0])
        return total / 1000

    def resident_mb(self):
        with open(f"/proc/{self.process.pid}/status") as status:
            return next(int(line.split()[1]) * 1024 / 1e6 for line in status if line.startswith("RssAnon"))

    def stop(self):
        self.process.terminate()
        self.process.wait()


def ours(todana):
    return [todana, "as", "ktserver"]


def call(procedure, *pairs):
    """Returns an HTTP request in the form that ktremotetest sends."""
    body = b"".join(b"%b\t%b\n" % pair for pair in pairs)
    head = b"POST /rpc/%b HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: %d\r\nContent-Type: text/tab-separated-values\r\n\r\n"
    return head % (procedure, len(body)) + body


def set_bulk(numbers, value_of=lambda number: number, xt=FOREVER):
    head, pieces = struct.pack(">HIIq", 0, 8, 8, xt), []
    for number in numbers:
        pieces.append(b"%b%08d%08d" % (head, number, value_of(number)))
    return struct.pack(">BII", SET, 0, len(pieces)) + b"".join(pieces)


def get_bulk(numbers):
    head, pieces = struct.pack(">HI", 0, 8), []
    for number in numbers:
        pieces.append(b"%b%08d" % (head, number))
    return struct.pack(">BII", GET, 0, len(pieces)) + b"".join(pieces)


def read_whole(connection, len_):
    """Reads `len_` bytes and returns the first nine of them."""
    begin = connection.recv(65536)
    missing = len_ - len(begin)
    while missing > 0:
        got = len(connection.recv(65536))
        if got == 0:
            raise SystemExit("the server has closed a connection")
        missing -= got
    if missing < 0:
        raise SystemExit(f"the reply has {-missing} bytes too many")
    return begin[:9]


def converse(server, requests, answer_len, is_right):
    """Runs a client, which sends each request after the reply to the previous one.

    Reads one HTTP reply per request if `answer_len` is None.
    """
    connection = server.connect()
    for request in requests:
        connection.sendall(request)
        answer = read_whole(connection, answer_len) if answer_len else connection.recv(65536)
        if not is_right(answer):
            raise SystemExit(f"unexpected reply: {answer!r}")
    connection.close()


def run(server, requests, answer_len, is_right):
    """Runs all clients at once. Returns the server's processor time in microseconds."""
    clients = [
        multiprocessing.Process(target=converse, args=(server, requests[n::CLIENTS], answer_len, is_right))
        for n in range(CLIENTS)
    ]
    before = server.processor_us()
    [client.start() for client in clients]
    [client.join() for client in clients]
    if any(client.exitcode for client in clients):
        sys.exit("a client failed")
    return server.processor_us() - before


def is_ok(answer):
    return answer.startswith(b"HTTP/1.1 200 ")


def is_full(answer):
    """Returns true if all records of a bulk request were stored or found."""
    return answer[1:5] == struct.pack(">I", BULK)


def chunks(numbers):
    return [numbers[at : at + BULK] for at in range(0, len(numbers), BULK)]


def speed(options):
    records = options.records // BULK * BULK
    draw = random.Random(1)
    new, known = list(range(records)), list(range(records))
    draw.shuffle(new)
    draw.shuffle(known)
    digits = lambda number: b"%08d" % number
    kinds = {
        "binary set, new": ([set_bulk(chunk) for chunk in chunks(new)], 5, is_full, records),
        "binary set, existing": ([set_bulk(chunk) for chunk in chunks(known)], 5, is_full, records),
        "binary get": ([get_bulk(chunk) for chunk in chunks(known)], 5 + BULK * 34, is_full, records),
        "binary set, expiring": ([set_bulk(chunk, xt=3600) for chunk in chunks(new)], 5, is_full, records),
        "binary get, expiring": ([get_bulk(chunk) for chunk in chunks(known)], 5 + BULK * 34, is_full, records),
        "RPC set, new": (rpc_sets(range(records, records + CALLS)), None, is_ok, CALLS),
        "RPC set, existing": (rpc_sets(draw.choices(new, k=CALLS)), None, is_ok, CALLS),
        "RPC get": ([call(b"get", (b"key", digits(n))) for n in draw.choices(new, k=CALLS)], None, is_ok, CALLS),
    }
    took = {name: ([], []) for name in kinds}
    for turn in range(options.rounds):
        # Each round starts new servers, so that new records cannot reuse the memory of earlier
        # ones.
        servers = [Server(ours(options.todana), ":"), Server([options.ktserver], ":")]
        try:
            for name, (requests, answer_len, is_right, count) in kinds.items():
                # The order of the two servers alternates.
                for which in (0, 1) if turn % 2 == 0 else (1, 0):
                    took[name][which].append(run(servers[which], requests, answer_len, is_right) / count)
        finally:
            [server.stop() for server in servers]
    print(f"{records} records of 8 + 8 digits, medians of {options.rounds} runs, processor time of the server in us per operation")
    print(f"{'':<22}{'ours':>8}{'ktserver':>10}{'ratio':>8}   bar 0.6   lowest and highest")
    for name, (of_ours, of_theirs) in took.items():
        ours_us, theirs_us = statistics.median(of_ours), statistics.median(of_theirs)
        spread = f"{min(of_ours):.3f}-{max(of_ours):.3f}, {min(of_theirs):.3f}-{max(of_theirs):.3f}"
        verdict = "held" if ours_us / theirs_us <= 0.6 else "MISSED"
        print(f"{name:<22}{ours_us:8.3f}{theirs_us:10.3f}{ours_us / theirs_us:8.2f}   {verdict:<10}{spread}", flush=True)


def rpc_sets(numbers):
    return [call(b"set", (b"key", b"%08d" % n), (b"value", b"%08d" % n)) for n in numbers]


def load(server, records, value_of=lambda number: number):
    connection = server.connect()
    for at in range(0, records, BULK):
        connection.sendall(set_bulk(range(at, at + BULK), value_of))
        assert is_full(read_whole(connection, 5))
    connection.close()


def memory(options):
    records = options.memory_records // BULK * BULK
    print(f"{records} records of 8 + 8 digits by binary bulk requests, in the order of their keys, RssAnon in MB three seconds later")
    print(f"{'':<10}{'database':<20}{'value = key':>12}{'any value':>12}   bar for ten million")
    for name, bar in BARS_MB.items():
        for who, command in [("ours", ours(options.todana)), ("ktserver", [options.ktserver])]:
            if who == "ktserver" and (not options.rival_memory or options.ktserver == "-"):
                continue
            resident = [resident_with(command, name, records, value_of) for value_of in (None, any_value)]
            verdict = ("held" if resident[0] <= bar else "MISSED") if who == "ours" else ""
            print(f"{who:<10}{name:<20}{resident[0]:12.1f}{resident[1]:12.1f}   {bar} {verdict}", flush=True)


def any_value(number):
    """Returns a value for a record's number. Values are unique and in no order."""
    return number * 61_803_399 % 100_000_000


def resident_with(command, database, records, value_of):
    server = Server(command, database)
    try:
        load(server, records, value_of or (lambda number: number))
        assert count(server) == records
        time.sleep(3)
        return server.resident_mb()
    finally:
        server.stop()


def count(server):
    """Returns the number of records."""
    with server.connect() as connection:
        connection.sendall(call(b"status"))
        answer = connection.recv(65536)
        return int(re.search(rb"^count\t(\d+)$", answer, re.MULTILINE)[1])


def latencies(server, seconds, keys):
    """Returns the latencies of single gets by RPC in microseconds, sorted."""
    connection, times, end = server.connect(), [], time.monotonic() + seconds
    requests = [call(b"get", (b"key", b"%08d" % n)) for n in keys]
    while time.monotonic() < end:
        for request in requests:
            began = time.perf_counter()
            connection.sendall(request)
            answer = connection.recv(65536)
            times.append((time.perf_counter() - began) * 1e6)
            assert is_ok(answer), answer
    connection.close()
    return sorted(times)


def waits(options):
    server = Server(ours(options.todana), ":")
    try:
        load(server, 100_000)
        keys = random.Random(1).sample(range(100_000), 200)
        latencies(server, 0.5, keys)
        before_us, before_cpu = latencies(server, 2, keys), server.processor_us()
        before_mb = server.resident_mb()
        request = call(b"void", (b"WAIT", b"gate"), (b"WAITTIME", b"60"))
        waiting = [server.connect() for _ in range(options.waits)]
        [connection.sendall(request) for connection in waiting]
        time.sleep(1)
        idle_cpu = server.processor_us()
        time.sleep(1)
        idle_cpu = (server.processor_us() - idle_cpu) / 1e4
        during_us = latencies(server, 2, keys)
        during_mb = server.resident_mb()
        control = server.connect()
        control.sendall(call(b"void", (b"SIGNAL", b"gate"), (b"SIGNALBROAD", b"")))
        answer = control.recv(65536)
        woken = sum(is_ok(connection.recv(65536)) for connection in waiting)
        [connection.close() for connection in waiting]
        reported = answer.rsplit(b"SIGNALED\t", 1)[-1].strip().decode()
        gone_mb = server.resident_mb()
    finally:
        server.stop()
    at = lambda times, share: times[int(len(times) * share)]
    print(f"{options.waits} connections wait for a signal: RssAnon {before_mb:.1f} MB before, {during_mb:.1f} meanwhile, {gone_mb:.1f} "
          f"afterwards (bar: 10 MB more); the waiting server uses {idle_cpu:.2f} % of a core")
    for name, times in [("before", before_us), ("meanwhile", during_us)]:
        print(f"gets by RPC {name}: {len(times)}, p50 {at(times, 0.5):.0f} us, p99 {at(times, 0.99):.0f} us, "
              f"p99.9 {at(times, 0.999):.0f} us")
    print(f"signal: the reply counts {reported} waiting connections, {woken} connections got a reply")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("todana")
    parser.add_argument("ktserver")
    parser.add_argument("parts", nargs="*", choices=["speed", "memory", "waits", []])
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--memory-records", type=int, default=10_000_000)
    parser.add_argument("--waits", type=int, default=1000)
    parser.add_argument("--rival-memory", action="store_true", help="also measure ktserver's memory")
    options = parser.parse_args()
    parts = options.parts or ["speed", "memory", "waits"]
    if "speed" in parts and options.ktserver != "-":
        speed(options)
    if "memory" in parts:
        memory(options)
    if "waits" in parts:
        waits(options)


main()
