"""How fast are a full copy to a replica and a restart of ten million records, from images?

Usage: images.py TODANA REDIS_SERVER

TODANA is an executable of this repository, REDIS_SERVER one of Redis. RECORDS (10,000,000) records
with keys and values of eight digits are stored in both. Then the program measures, in one run:

- checkpoint: the time to write one, its size, the additional anonymous memory of the server
  (RssAnon) during it, and the 99th percentile of the latency of a client
- copy: the time until a new replica has all records, over loopback, with both figures of its master
- restart: the time from the start of the process until it replies with a record, and the same for
  Redis with its RDB file

The client sends a get each millisecond, in a process of its own. During a copy, the master and the
client have the first CPUs, and the replica and this program the last one, as if they ran on another
machine: this program asks the replica for its state a hundred times a second. There are ROUNDS (5)
rounds. The
table shows medians, and percentiles of all rounds together. The program fails if a bar is missed: a
copy of at most 3 s; latency at most 2 times that before; additional memory of at most 5 % and 16
MB; a restart of at most 0.25 times that of Redis.
"""

import multiprocessing
import os
import re
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time

if len(sys.argv) != 3:
    sys.exit(__doc__)
TODANA, REDIS = sys.argv[1:3]
RECORDS = int(os.environ.get("RECORDS", "10000000"))
ROUNDS = int(os.environ.get("ROUNDS", "5"))
TIMEOUT_S = 300
# The client measures for this time before each test.
BEFORE_S = 4
# The memory of a server is read at this interval.
SAMPLE_S = 0.02
SCRATCH = tempfile.mkdtemp(prefix="images-", dir=os.environ.get("TMPDIR", "/var/tmp"))
CHILDREN = []


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def start(command):
    log = open(os.path.join(SCRATCH, "servers.log"), "ab")
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    CHILDREN.append(child)
    return child


def stop(child):
    child.send_signal(signal.SIGTERM)
    child.wait(TIMEOUT_S)
    CHILDREN.remove(child)


def call(port, request, end):
    """Sends a request. Returns the reply, or nothing if there is no server."""
    try:
        with socket.create_connection(("127.0.0.1", port), TIMEOUT_S) as connection:
            connection.sendall(request)
            reply = b""
            while not reply.endswith(end):
                piece = connection.recv(1 << 16)
                if not piece:
                    return b""
                reply += piece
            return reply
    except ConnectionError:
        return b""


def wait_until(condition):
    """Waits until a condition is true. Returns the seconds that it took."""
    began = time.monotonic()
    while not condition():
        if time.monotonic() - began > TIMEOUT_S:
            raise TimeoutError("a server does not get ready")
        time.sleep(0.01)
    return time.monotonic() - began


def key(number):
    return b"%08d" % number


def has_record(port):
    last = key(RECORDS)
    return call(port, b"get %s\r\n" % last, b"END\r\n") == b"VALUE %s 0 8\r\n%s\r\nEND\r\n" % (last, last)


def statistic(port, name):
    found = re.search(rb"STAT %s (\S+)" % name, call(port, b"stats\r\n", b"END\r\n"))
    return found and found.group(1)


def todana(directory, port, *options, cpus=None):
    command = [TODANA, "serve", "-p", str(port), "-l", "127.0.0.1", "-m", "0", "--data-dir", directory, *options]
    if cpus:
        command = ["taskset", "-c", ",".join(map(str, cpus)), *command]
    return start(command)


def resident_anon(pid):
    with open(f"/proc/{pid}/status") as status:
        return int(re.search(r"RssAnon:\s+(\d+)", status.read()).group(1)) * 1024


class MemoryWatch:
    """Reads the memory of a process until it ends."""

    def __init__(self, pid):
        self.pid, self.most, self.ends = pid, 0, threading.Event()
        self.before = resident_anon(pid)
        self.thread = threading.Thread(target=self.run)
        self.thread.start()

    def run(self):
        while not self.ends.wait(SAMPLE_S):
            self.most = max(self.most, resident_anon(self.pid))

    def end(self):
        """Returns the additional bytes at most."""
        self.ends.set()
        self.thread.join()
        return max(0, self.most - self.before)


def probe(port, times, ends, cpus):
    """Sends a get each millisecond. Notes when each was sent and how long its reply took."""
    os.sched_setaffinity(0, cpus)
    connection = socket.create_connection(("127.0.0.1", port), TIMEOUT_S)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    noted, number = [], 1
    due = time.monotonic()
    while not ends.is_set():
        due += 0.001
        time.sleep(max(0, due - time.monotonic()))
        number = number * 16807 % 2147483647
        sent = time.monotonic()
        connection.sendall(b"get %s\r\n" % key(number % RECORDS + 1))
        connection.recv(1 << 12)
        noted.append((sent, time.monotonic() - sent))
    times.put(noted)


class LatencyWatch:
    """A client that measures the latency before and during a test."""

    def __init__(self, port, cpus):
        self.times, self.ends = multiprocessing.Queue(), multiprocessing.Event()
        self.process = multiprocessing.Process(target=probe, args=(port, self.times, self.ends, cpus))
        self.process.start()
        time.sleep(BEFORE_S)
        self.began = time.monotonic()

    def end(self):
        """Returns the latencies before and during the test, in microseconds."""
        ended = time.monotonic()
        self.ends.set()
        noted = self.times.get()
        self.process.join()
        before = [took * 1e6 for sent, took in noted if sent < self.began]
        during = [took * 1e6 for sent, took in noted if self.began <= sent < ended]
        return before, during


def fill_todana(port):
    command = [TODANA, "bench", f"127.0.0.1:{port}", "--load-only", "--keys", str(RECORDS), "--value-size", "key"]
    subprocess.run([*command, "--pipeline", "64"], check=True, stdout=subprocess.DEVNULL)
    has_all = lambda: statistic(port, b"curr_items") == b"%d" % RECORDS
    wait_until(has_all)


def fill_redis(port):
    with socket.create_connection(("127.0.0.1", port), TIMEOUT_S) as connection:
        replies = threading.Thread(target=read_replies, args=(connection, RECORDS * len(b"+OK\r\n")))
        replies.start()
        for first in range(1, RECORDS + 1, 10000):
            numbers = range(first, min(first + 10000, RECORDS + 1))
            head = b"*3\r\n$3\r\nSET\r\n$8\r\n%08d\r\n$8\r\n%08d\r\n"
            connection.sendall(b"".join(head % (number, number) for number in numbers))
        replies.join()


def read_replies(connection, length):
    while length > 0:
        length -= len(connection.recv(1 << 20))


def main():
    master_directory = os.path.join(SCRATCH, "master")
    port = free_port()
    master = todana(master_directory, port, "--server-id", "1")
    wait_until(lambda: call(port, b"version\r\n", b"\r\n"))
    fill_todana(port)

    cpus = sorted(os.sched_getaffinity(0))
    checkpoints, copies, restarts, rivals = [], [], [], []
    for _ in range(ROUNDS):
        latency, memory = LatencyWatch(port, cpus), MemoryWatch(master.pid)
        began = time.monotonic()
        subprocess.run([TODANA, "checkpoint", f"127.0.0.1:{port}"], check=True, stdout=subprocess.DEVNULL)
        took = time.monotonic() - began
        checkpoints.append((took, memory.end(), memory.before, *latency.end()))
    files = os.path.join(master_directory, "checkpoints")
    length = max(os.path.getsize(os.path.join(files, name)) for name in os.listdir(files))

    keep_on_cpus(os.getpid(), cpus[-1:])
    keep_on_cpus(master.pid, cpus[:-1])
    for round in range(ROUNDS):
        directory, replica_port = os.path.join(SCRATCH, f"replica{round}"), free_port()
        latency, memory = LatencyWatch(port, cpus[:-1]), MemoryWatch(master.pid)
        began = time.monotonic()
        master_link = ["--replicate", f"todana://127.0.0.1:{port}"]
        replica = todana(directory, replica_port, "--server-id", "2", *master_link, cpus=cpus[-1:])
        wait_until(lambda: statistic(replica_port, b"curr_items") == b"%d" % RECORDS)
        took = time.monotonic() - began
        copies.append((took, memory.end(), memory.before, *latency.end()))
        stored = lambda: b"copying" not in read_file(os.path.join(directory, "replica-position"))
        on_disk = time.monotonic() - began + wait_until(stored)
        stop(replica)
        shutil.rmtree(directory)
        print(f"copy {took:.2f} s, on the replica's disk after {on_disk:.2f} s", file=sys.stderr)
    stop(master)
    keep_on_cpus(os.getpid(), cpus)

    redis_directory = os.path.join(SCRATCH, "redis")
    os.mkdir(redis_directory)
    redis_port = free_port()
    redis = lambda: start(
        [REDIS, "--port", str(redis_port), "--dir", redis_directory, "--save", "", "--bind", "127.0.0.1"]
    )
    get = b"*2\r\n$3\r\nGET\r\n$8\r\n%s\r\n" % key(RECORDS)
    is_loaded = lambda: call(redis_port, get, b"\r\n") == b"$8\r\n%s\r\n" % key(RECORDS)
    rival = redis()
    wait_until(lambda: call(redis_port, b"PING\r\n", b"\r\n"))
    fill_redis(redis_port)
    assert call(redis_port, b"SAVE\r\n", b"\r\n") == b"+OK\r\n"
    stop(rival)
    for _ in range(ROUNDS):
        rival = redis()
        rivals.append(wait_until(is_loaded))
        stop(rival)
        master = todana(master_directory, port, "--server-id", "1")
        restarts.append(wait_until(lambda: has_record(port)))
        stop(master)
    report(checkpoints, copies, restarts, rivals, length)


def keep_on_cpus(pid, cpus):
    for thread in os.listdir(f"/proc/{pid}/task"):
        os.sched_setaffinity(int(thread), cpus)


def read_file(path):
    try:
        with open(path, "rb") as file:
            return file.read()
    except FileNotFoundError:
        return b"copying"


def p99(latencies):
    return sorted(latencies)[len(latencies) * 99 // 100]


def report(checkpoints, copies, restarts, rivals, length):
    missed = []
    print(f"{RECORDS} records of 8 + 8 digits, {ROUNDS} rounds; a checkpoint has {length / 1e6:.1f} MB")
    print("| test | seconds | all rounds | additional memory | p99 before | p99 during |")
    print("|---|---|---|---|---|---|")
    for name, rounds in [("checkpoint", checkpoints), ("copy", copies)]:
        seconds, more, before = (statistics.median(round[n] for round in rounds) for n in range(3))
        p99_before, p99_during = (p99([took for round in rounds for took in round[n]]) for n in (3, 4))
        all_s = ", ".join(f"{round[0]:.2f}" for round in rounds)
        print(
            f"| {name} | {seconds:.2f} | {all_s} | {more / 1e6:.1f} MB of {before / 1e6:.0f} "
            f"| {p99_before:.0f} us | {p99_during:.0f} us |"
        )
        if more > before * 0.05 + (16 << 20):
            missed.append(f"{name}: memory")
        if p99_during > 2 * p99_before:
            missed.append(f"{name}: latency, {p99_during / p99_before:.2f} times")
        if name == "copy" and seconds > 3:
            missed.append("copy: time")
    for name, rounds in [("restart", restarts), ("restart of Redis", rivals)]:
        print(f"| {name} | {statistics.median(rounds):.2f} | {', '.join(f'{took:.2f}' for took in rounds)} | | | |")
    ratio = statistics.median(restarts) / statistics.median(rivals)
    print(f"restart: {ratio:.3f} times the time of Redis")
    if ratio > 0.25:
        missed.append("restart: ratio")
    if missed:
        sys.exit("missed: " + "; ".join(missed))


try:
    main()
finally:
    for child in CHILDREN:
        child.kill()
        child.wait()
    shutil.rmtree(SCRATCH, ignore_errors=True)
