"""Does a mass expiry disturb other clients?

A running server holds 1 M records that expire in the same second and 1 M that do not, while a
client reads the latter, one at a time. Prints the time from that second until the records are
removed, and until RssAnon has returned to its level; the p99 of the gets before and during the
expiry; and the server's share of a core while 1 M records have an expiry, and when none has.

Usage: expiry.py PORT PID [RECORDS]
"""

import os
import random
import socket
import sys
import threading
import time

PORT, PID = int(sys.argv[1]), sys.argv[2]
RECORDS = int(sys.argv[3]) if len(sys.argv) > 3 else 1_000_000
VALUE = b"x" * 32
TICKS = os.sysconf("SC_CLK_TCK")


def resident_mb():
    with open(f"/proc/{PID}/status") as status:
        return next(int(line.split()[1]) * 1024 / 1e6 for line in status if line.startswith("RssAnon"))


def processor_s():
    with open(f"/proc/{PID}/stat") as stat:
        fields = stat.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def connect():
    connection = socket.create_connection(("127.0.0.1", PORT))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def load(prefix, exptime):
    """Sets RECORDS records without replies, and waits until the server has executed them."""
    connection = connect()
    for start in range(0, RECORDS, 10_000):
        sets = [
            b"set %b%d 0 %d %d noreply\r\n%b\r\n" % (prefix, n, exptime, len(VALUE), VALUE)
            for n in range(start, min(start + 10_000, RECORDS))
        ]
        connection.sendall(b"".join(sets) + b"mn\r\n")
        assert connection.recv(100) == b"MN\r\n"
    connection.close()


def statistics(connection):
    connection.sendall(b"stats\r\n")
    text = b""
    while not text.endswith(b"END\r\n"):
        text += connection.recv(65536)
    return dict(line.split(b" ", 2)[1:] for line in text.split(b"\r\n") if line.startswith(b"STAT"))


class Reader(threading.Thread):
    """Gets random records without expiry, one at a time. Notes start and duration of each get."""

    def __init__(self):
        super().__init__(daemon=True)
        self.times = []
        self.wrong = 0
        self.ends = False

    def run(self):
        connection, draw = connect(), random.Random(1)
        while not self.ends:
            request = b"get s%d\r\n" % draw.randrange(RECORDS)
            began = time.perf_counter()
            connection.sendall(request)
            answer = connection.recv(4096)
            while not answer.endswith(b"END\r\n"):
                answer += connection.recv(4096)
            self.times.append((began, time.perf_counter() - began))
            self.wrong += VALUE not in answer


def percentile(times, share):
    times = sorted(times)
    return times[int(len(times) * share)] * 1e6 if times else float("nan")


def idle_share(seconds):
    before = processor_s()
    time.sleep(seconds)
    return (processor_s() - before) / seconds * 100


def main():
    control = connect()
    load(b"s", 0)
    time.sleep(2)
    staying_mb = resident_mb()
    # Loading takes seconds. All records therefore have the same absolute expiry, after the end of
    # the loading.
    load_s = RECORDS / 100_000 + 8
    at = int(time.time() + load_s)
    load(b"e", at)
    print(f"{RECORDS} records stay: RssAnon {staying_mb:.1f} MB; with the same number of expiring records: {resident_mb():.1f} MB")
    share = idle_share(max(1.0, at - time.time() - 6))
    print(f"server while {RECORDS} records wait for their expiry: {share:.2f} % of a core")

    reader = Reader()
    began = time.perf_counter()
    reader.start()
    time.sleep(max(0.0, at - 0.5 - time.time()))
    expiry = time.perf_counter() + (at - time.time())
    gone = back = None
    level_mb = staying_mb * 1.05 + 2
    processor_before = processor_s()
    while time.perf_counter() < expiry + 10 and not (gone and back):
        now = time.perf_counter()
        if gone is None and int(statistics(control)[b"curr_items"]) == RECORDS:
            gone = now - expiry
        if back is None and resident_mb() <= level_mb:
            back = now - expiry
        time.sleep(0.05)
    ended = time.perf_counter()
    processor = processor_s() - processor_before
    time.sleep(2)
    reader.ends = True
    reader.join()
    before = [took for start, took in reader.times if start < expiry - 0.5 and start > began + 0.2]
    during = [took for start, took in reader.times if expiry <= start <= ended]
    show = lambda seconds: "NOT within 10 s" if seconds is None else f"{seconds:.2f} s"
    print(f"records gone after {show(gone)}, RssAnon at {level_mb:.1f} MB or less after {show(back)} (bar: 5 s)")
    print(f"RssAnon two seconds later: {resident_mb():.1f} MB; the server took {processor:.2f} s of processor time meanwhile")
    for name, times in [("before", before), ("during", during)]:
        print(f"gets {name}: {len(times)}, p50 {percentile(times, 0.5):.0f} us, p99 {percentile(times, 0.99):.0f} us, "
              f"p99.9 {percentile(times, 0.999):.0f} us")
    ratio = percentile(during, 0.99) / percentile(before, 0.99)
    print(f"p99 during / before: {ratio:.2f} (bar: 2.0); wrong answers: {reader.wrong}")
    print(f"server with nothing left to expire: {idle_share(5):.2f} % of a core")


main()
