#!/usr/bin/env python3
"""Does a store without eviction remove expired records fast enough?

This experiment was the reason for memcached's patch of 2006. Values have 1 B to 1 MB (log-uniform)
and expire 300 to 900 seconds after their last access. Every 0.45 s of the experiment's time, there
is one set, and two reads of the last 200 keys. The server may use 1.15 times the mean of the live
bytes (-m, rounded up to whole MiB) and may not evict (-M). Prints the number of sets that the
server refuses because memory is full, and the number that memcached refuses with the same limit.

Time is the server's test clock (`debugtime`), so 161 hours take minutes. Debian's memcached has
neither such a clock nor sliding expiry. For memcached, the program deletes each value in the second
of its expiry, which is more favourable than any expiry in the server. Reads are `mg KEY`, which
counts as a read and transfers no value. -m limits memcached's memory for items, and the complete
process of Todana.

    --draw independent  Each size and time to live is drawn separately. The live bytes then vary by
                        6 % (one standard deviation): in 1.29 M sets they exceed 1.2 times their
                        mean, and no store can hold them. Refusals while the live bytes and the new
                        value exceed the limit are counted separately.
    --draw even         Golden-ratio and similar sequences: the same distributions, but any few
                        hundred consecutive sets cover nearly all of them, so that the live bytes
                        stay within about 6 % of their mean.

Usage: experiment_2006.py TODANA [--sets N] [--draw even|independent] [--factor 1.15]
                          [--memcached PATH] [--limit MIB]
"""

import argparse
import heapq
import math
import os
import random
import select
import shutil
import socket
import subprocess
import sys
import time

STEP_S = 0.45
LAST_KEYS = 200
SIZE_MAX = 1_000_000
BODY = memoryview(os.urandom(SIZE_MAX))
AT_ONCE = 16


class Plan:
    """The schedule of sets and reads, and the live values. It is the same for every server."""

    def __init__(self, sets, draw):
        chance = random.Random(2006)
        even = draw == "even"
        share = lambda n, ratio: (n * ratio) % 1 if even else chance.random()
        self.sets = sets
        self.size = [int(math.exp(share(n, 0.6180339887498949) * math.log(SIZE_MAX))) for n in range(sets)]
        self.span = [300 + int(share(n, 0.7548776662466927) * 601) for n in range(sets)]
        back = lambda n, ratio: n - int(share(n, ratio) * min(LAST_KEYS, n + 1))
        self.reads = [(back(n, 0.5698402909980532), back(n, 0.4142135623730951)) for n in range(sets)]

    def steps(self):
        """Yields the number and the second of each set, the keys that have expired since the
        previous set, and the live bytes after this one.
        """
        over_at, ends, live = {}, [], 0
        for n in range(self.sets):
            now = int(n * STEP_S)
            over = []
            while ends and ends[0][0] <= now:
                at, key = heapq.heappop(ends)
                if over_at[key] > at:
                    heapq.heappush(ends, (over_at[key], key))
                else:
                    del over_at[key]
                    over.append(key)
                    live -= self.size[key] + len(b"k%d" % key)
            live += self.size[n] + len(b"k%d" % n)
            over_at[n] = now + self.span[n]
            heapq.heappush(ends, (over_at[n], n))
            for key in self.reads[n]:
                over_at[key] = now + self.span[key]
            yield n, now, over, live

    def mean_and_peak(self):
        """Returns the mean of the live bytes after the first values have expired."""
        total = count = peak = 0
        for n, _, _, live in self.steps():
            if n * STEP_S >= 1000 or self.sets * STEP_S < 2000:
                total, count, peak = total + live, count + 1, max(peak, live)
        return total / count, peak


class Server:
    def __init__(self, command, port):
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        for _ in range(100):
            try:
                self.socket = socket.create_connection(("127.0.0.1", port))
                break
            except OSError:
                time.sleep(0.1)
        else:
            sys.exit(f"{command[0]} does not listen")
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.unread = b""

    def send(self, pieces):
        """Sends bytes and buffers the replies.

        A server stops reading requests if the client does not read its replies.
        """
        self.socket.setblocking(False)
        for piece in pieces:
            view = memoryview(piece)
            while view:
                readable, writable, _ = select.select([self.socket], [self.socket], [])
                if readable:
                    self.unread += self.receive()
                if writable:
                    view = view[self.socket.send(view):]
        self.socket.setblocking(True)

    def receive(self):
        received = self.socket.recv(1 << 16)
        if not received:
            sys.exit("the server has closed the connection")
        return received

    def lines(self, count):
        while self.unread.count(b"\r\n") < count:
            self.unread += self.receive()
        *lines, self.unread = self.unread.split(b"\r\n", count)
        return lines

    def ask(self, line):
        self.send([line])
        return self.lines(1)[0]

    def statistic(self, name):
        self.send([b"stats\r\n"])
        text = self.unread
        while not text.endswith(b"END\r\n"):
            text += self.receive()
        self.unread = b""
        return next(line.split()[2].decode() for line in text.split(b"\r\n") if line.startswith(b"STAT %b " % name))

    def resident_mb(self):
        with open(f"/proc/{self.process.pid}/status") as status:
            return next(int(line.split()[1]) * 1024 / 1e6 for line in status if line.startswith("RssAnon"))

    def stop(self):
        self.socket.close()
        self.process.terminate()
        self.process.wait()


def run(name, server, plan, limit_bytes, has_clock):
    refused = unavoidable = missed = 0
    began = time.time()
    stored = {}
    expected, pieces, clock = [], [], 0
    if has_clock:
        assert server.ask(b"debugtime p\r\n") == b"OK"

    def settle():
        nonlocal refused, unavoidable, missed
        server.send(pieces)
        for (kind, key, live), line in zip(expected, server.lines(len(expected))):
            if kind == "set":
                stored[key] = line == b"STORED"
                if line.lower().startswith(b"server_error out of memory"):
                    refused += 1
                    unavoidable += live > limit_bytes
                elif line != b"STORED":
                    sys.exit(f"{name} answers a set with {line!r}")
            elif kind == "read":
                missed += stored[key] and line != b"HD"
            elif kind == "clock" and line != b"OK":
                sys.exit(f"{name} answers debugtime with {line!r}")
        pieces.clear()
        expected.clear()

    for n, now, over, live in plan.steps():
        if has_clock and now > clock:
            pieces.append(b"debugtime +%d\r\n" % (now - clock))
            expected.append(("clock", 0, 0))
        clock = now
        for key in over:
            if not has_clock:
                pieces.append(b"delete k%d\r\n" % key)
                expected.append(("delete", key, 0))
            stored.pop(key, None)
        exptime = -plan.span[n] if has_clock else 0
        pieces += [b"set k%d 0 %d %d\r\n" % (n, exptime, plan.size[n]), BODY[:plan.size[n]],
                   b"\r\nmg k%d\r\nmg k%d\r\n" % plan.reads[n]]
        expected += [("set", n, live), ("read", plan.reads[n][0], 0), ("read", plan.reads[n][1], 0)]
        if n % AT_ONCE == AT_ONCE - 1:
            settle()
    settle()
    print(f"{name}: {refused} of {plan.sets} sets refused because memory is full, {unavoidable} of them while the live bytes "
          f"exceeded the limit; {missed} reads missed a live value")
    print(f"{name}: {server.statistic(b'curr_items')} records at the end, RssAnon {server.resident_mb():.1f} MB; "
          f"{time.time() - began:.0f} s", flush=True)
    return refused, missed


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("todana")
    parser.add_argument("--sets", type=int, default=1_290_000)
    parser.add_argument("--draw", choices=["even", "independent"], default="even")
    parser.add_argument("--factor", type=float, default=1.15)
    parser.add_argument("--limit", type=int, help="MiB, instead of the limit from --factor")
    parser.add_argument("--memcached", default=shutil.which("memcached"))
    options = parser.parse_args()
    plan = Plan(options.sets, options.draw)
    mean, peak = plan.mean_and_peak()
    limit = options.limit or math.ceil(options.factor * mean / (1 << 20))
    print(f"{options.sets} sets, {options.draw} draw: live bytes {mean / 1e6:.1f} MB in the mean, {peak / 1e6:.1f} MB at most "
          f"({peak / mean:.3f} of it); limit {limit} MiB ({limit * (1 << 20) / mean:.3f} of it)", flush=True)
    port = free_port()
    words = ["-l", "127.0.0.1", "-p", str(port), "-m", str(limit), "-M", "-I", "1m", "-t", "1"]
    ours = Server([options.todana, "serve", *words, "-o", "negative_exptime=sliding,debug_commands"], port)
    refused, missed = run("todana", ours, plan, limit << 20, True)
    ours.stop()
    if options.memcached:
        port = free_port()
        words[3] = str(port)
        theirs = Server([options.memcached, *words, "-U", "0", "-u", "root"], port)
        run("memcached", theirs, plan, limit << 20, False)
        theirs.stop()
    else:
        print("memcached: skipped: not found")
    sys.exit(1 if refused or missed else 0)


main()
