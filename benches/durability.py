"""The measurements of durability.sh. Usage: durability.py TODANA [BAR]..."""

import glob
import itertools
import json
import os
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from statistics import median

TODANA = sys.argv[1]
BARS = sys.argv[2:] or ["4", "5", "6", "7", "9"]
RECORDS = int(os.environ.get("RECORDS", "10000000"))
ROUNDS = int(os.environ.get("ROUNDS", "5"))
TAIL = RECORDS // 10
# A process without output for this time has failed.
PATIENCE_S = 120
MB = 1e6


def rival():
    """Returns the rival's server and benchmark, or None."""
    named = os.environ.get("RIVAL")
    for name in [named] if named else ["valkey-server", "redis-server"]:
        server = shutil.which(name)
        bench = server and (shutil.which(server.replace("-server", "-benchmark")))
        if server and bench:
            return server, bench
    return None


RIVAL = rival()
SCRATCH = tempfile.mkdtemp(prefix="durability-", dir=os.environ.get("TMPDIR", "/var/tmp"))
CHILDREN = []
ROWS = []


def row(bar, what, figure, limit, holds):
    ROWS.append((bar, what, figure, limit, holds))
    print(f"   {bar} {what}: {figure} (bar: {limit})", flush=True)


def free_port():
    with socket.socket() as some:
        some.bind(("127.0.0.1", 0))
        return some.getsockname()[1]


def spawn(*words):
    child = subprocess.Popen([str(word) for word in words], stdout=subprocess.DEVNULL)
    CHILDREN.append(child)
    return child


def stop(child, how=signal.SIGTERM):
    if child.poll() is None:
        child.send_signal(how)
        child.wait(PATIENCE_S)


def connect(port, child, end):
    while True:
        try:
            return socket.create_connection(("127.0.0.1", port), PATIENCE_S)
        except ConnectionRefusedError:
            if child.poll() is not None or time.perf_counter() > end:
                sys.exit(f"{child.args[0]} does not serve")
            time.sleep(0.002)


class Todana:
    """A Todana server. The constructor returns once the server replies."""

    def __init__(self, *options):
        self.port = free_port()
        began = time.perf_counter()
        self.child = spawn(TODANA, "serve", "-p", self.port, "-m", 0, "--admin-port", 0, *options)
        self.connection = connect(self.port, self.child, began + PATIENCE_S)
        self.connection.sendall(b"get 00000001\r\n")
        # The server accepts connections before its data is loaded, and replies afterwards.
        if not self.connection.recv(4096).endswith(b"END\r\n"):
            sys.exit("unexpected reply to a get")
        self.took = time.perf_counter() - began

    def stream(self, pieces):
        """Sends sets without replies, and waits until the server has executed them."""
        self.connection.sendall(b"".join(pieces) + b"mn\r\n")
        if self.connection.recv(100) != b"MN\r\n":
            sys.exit("a set was refused")

    def bench(self, *words):
        """Runs the load generator and returns its report."""
        words = [TODANA, "bench", f"127.0.0.1:{self.port}", "--force", "--json", "-", "--pid", self.child.pid, *words]
        out = subprocess.run([str(word) for word in words], stdout=subprocess.PIPE, timeout=PATIENCE_S * 5, check=True)
        return json.loads(out.stdout)

    def stop(self, how=signal.SIGTERM):
        self.connection.close()
        stop(self.child, how)


class Rival:
    """A rival server. The constructor returns once the server replies."""

    def __init__(self, directory, *options):
        self.port = free_port()
        began = time.perf_counter()
        self.child = spawn(RIVAL[0], "--port", self.port, "--bind", "127.0.0.1", "--dir", directory, "--save", "", *options)
        self.connection = connect(self.port, self.child, began + PATIENCE_S)
        while not self.ask(b"PING").startswith(b"+PONG"):
            time.sleep(0.002)
        self.took = time.perf_counter() - began

    def ask(self, line):
        self.connection.sendall(line + b"\r\n")
        return self.connection.recv(4096)

    def stop(self, how=signal.SIGTERM):
        self.connection.close()
        stop(self.child, how)


def resident(pid):
    with open(f"/proc/{pid}/status") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith("RssAnon"))


def records(count, salt):
    """Yields key and value of `count` of the RECORDS, of 8 digits each.

    The keys are in an order that helps no store. The digits of the values are random.
    """
    for n in range(count):
        mixed = (n + salt * 0x9E3779B9) * 0x9E3779B97F4A7C15 & 0xFFFFFFFFFFFFFFFF
        mixed = (mixed ^ mixed >> 29) * 0xBF58476D1CE4E5B9 & 0xFFFFFFFFFFFFFFFF
        yield n * 7_368_787 % RECORDS, (mixed ^ mixed >> 32) % 100_000_000


def pieces(form, count, salt, step=50_000):
    piece = []
    for record in records(count, salt):
        piece.append(form % record)
        if len(piece) == step:
            yield piece
            piece = []
    if piece:
        yield piece


SET = b"set %08d 0 0 8 noreply\r\n%08d\r\n"


class Directory:
    """A data directory. Reads its state from its files (docs/format/)."""

    def __init__(self, path):
        self.path = path

    def checkpoints(self):
        return sorted(glob.glob(f"{self.path}/checkpoints/*.checkpoint"))

    def is_making_one(self):
        return bool(glob.glob(f"{self.path}/checkpoints/*.partial"))

    def log_end(self):
        last = max(glob.glob(f"{self.path}/log/*.log"))
        return int(os.path.basename(last)[:20]) + os.path.getsize(last) - 64

    def stable_log_end(self):
        """Returns the end of the log once it no longer grows."""
        end = None
        while end != (end := self.log_end()):
            time.sleep(1.5)
        return end

    def next_checkpoint(self, server, salt):
        """Writes until a checkpoint begins, and waits for its end. Returns its log position."""
        before = self.checkpoints()[-1:]
        deadline = time.monotonic() + PATIENCE_S
        for piece in itertools.chain.from_iterable(pieces(SET, RECORDS, salt) for _ in itertools.repeat(None)):
            if self.is_making_one() or time.monotonic() > deadline:
                break
            server.stream(piece)
        while self.is_making_one() or self.checkpoints()[-1:] == before:
            if time.monotonic() > deadline:
                sys.exit("the server creates no checkpoint")
            time.sleep(0.05)
        return int(os.path.basename(self.checkpoints()[-1])[:20])


def prepare(directory):
    """Writes RECORDS into a checkpoint, and TAIL into the log after it."""
    server = Todana("--data-dir", directory.path)
    for piece in pieces(SET, RECORDS, 0):
        server.stream(piece)
    while directory.is_making_one():
        time.sleep(0.05)
    start = directory.next_checkpoint(server, 1)
    entry = 8 + 1 + 1 + 8 + 8
    there = (directory.stable_log_end() - start) // entry
    for piece in pieces(SET, max(TAIL - there, 0), 2):
        server.stream(piece)
    server.stop()


def bar_9(directory):
    path = directory.checkpoints()[-1]
    size = os.path.getsize(path)
    with open(path, "rb") as file:
        file.seek(-56, os.SEEK_END)
        _, blocks, _, _, _, content_len = struct.unpack("<8s5Q", file.read(48))
    plain = 96 + 20 * blocks + content_len + 56
    row("9", "checkpoint, compressed by zstd", f"{size / MB:.1f} MB", "70 MB", size <= 70 * MB)
    row("9", "the same uncompressed, from the lengths in its footer", f"{plain / MB:.1f} MB", "130 MB", plain <= 130 * MB)


def bar_5(directory):
    ours, theirs = [], []
    rdb = f"{SCRATCH}/rival"
    if RIVAL:
        os.mkdir(rdb)
        server = Rival(rdb)
        server.connection.sendall(b"CLIENT REPLY OFF\r\n")
        for piece in pieces(b"SET %08d %08d\r\n", RECORDS, 0):
            server.connection.sendall(b"".join(piece))
        server.connection.sendall(b"CLIENT REPLY ON\r\n")
        server.connection.recv(100)
        if not server.ask(b"SAVE").startswith(b"+OK"):
            sys.exit("the rival does not save")
        server.stop(signal.SIGKILL)
    for _ in range(ROUNDS):
        server = Todana("--data-dir", directory.path)
        ours.append(server.took)
        server.stop(signal.SIGKILL)
        if RIVAL:
            server = Rival(rdb)
            theirs.append(server.took)
            server.stop(signal.SIGKILL)
    for name, tooks in [("ours", ours), ("theirs", theirs)]:
        if tooks:
            print(f"   {name}:", *(f"{took:.2f}" for took in tooks))
    took = median(ours)
    row("5", f"restart: {RECORDS} records in a checkpoint, {TAIL} in the log", f"{took:.2f} s", "4 s", took <= 4)
    if RIVAL:
        ratio = took / median(theirs)
        row("5", f"over the rival's load of the same records ({median(theirs):.2f} s)", f"{ratio:.2f}", "0.5", ratio <= 0.5)


def bar_4(directory):
    server = Todana("--data-dir", directory.path)
    pid, during, apart, growth = server.child.pid, [], [], []
    watch = {"on": True, "before": resident(pid), "most": 0, "seen": 0}

    def look():
        was = False
        while watch["on"]:
            now, bytes_ = directory.is_making_one(), resident(pid)
            if now and not was:
                watch["seen"] += 1
                watch["base"] = watch["before"]
                watch["most"] = 0
            if now:
                watch["most"] = max(watch["most"], bytes_ - watch["base"])
            else:
                if was:
                    growth.append((watch["most"], watch["base"]))
                watch["before"] = bytes_
            was = now
            time.sleep(0.01)

    watcher = threading.Thread(target=look)
    watcher.start()
    words = ["--cold", "--ratio", "0:1", "--keys", RECORDS, "--key-size", 8, "--value-size", "key", "--duration", "0.5s"]
    end = time.monotonic() + PATIENCE_S
    # The first overwrite changes the size of the records.
    server.bench(*words)
    while time.monotonic() < end and (len(growth) < 2 or len(during) < 6 or len(apart) < 6):
        if len(apart) >= 6 and not directory.is_making_one():
            # The pipeline gives a full write load, so that the next checkpoint begins soon.
            server.bench(*words, "--pipeline", 64, "--seed", watch["seen"] + 7)
            continue
        before = directory.is_making_one()
        round_ = server.bench(*words, "--seed", len(during) + len(apart) + 50)["servers"][0]["rounds"][0]
        if before and directory.is_making_one():
            during.append(round_)
        elif not before and not directory.is_making_one():
            apart.append(round_)
    watch["on"] = False
    watcher.join()
    server.stop()
    if not growth or not during:
        sys.exit("the server created no checkpoint under load")
    most, base = max(growth)
    allowed = 0.03 * base + 8 * MB
    row(
        "4",
        f"RssAnon growth during a checkpoint of {RECORDS} records under full write load, RssAnon {base / MB:.1f} MB",
        f"{most / MB:.1f} MB",
        f"{allowed / MB:.1f} MB",
        most <= allowed,
    )
    p99 = [median([round_["latency_us"]["p99"] for round_ in rounds]) for rounds in (during, apart)]
    rate = [median([round_["requests_per_second"] for round_ in rounds]) for rounds in (during, apart)]
    row(
        "4",
        f"p99 of sets during it, {p99[0]:.0f} us, over without, {p99[1]:.0f} us ({rate[0]:.0f} and {rate[1]:.0f} sets/s)",
        f"{p99[0] / p99[1]:.2f}",
        "2",
        p99[0] <= 2 * p99[1],
    )


def bar_6():
    logged = Todana("--data-dir", f"{SCRATCH}/logged", "--sync", 1000)
    plain = Todana()
    report = logged.bench(
        "--vs", f"127.0.0.1:{plain.port}", "--vs-pid", plain.child.pid, "--ratio", "0:1", "--keys", 1_000_000,
        "--value-size", 8, "--requests", 300_000, "--rounds", 7,
    )
    logged.stop()
    plain.stop()
    cpu = [server["medians"]["server CPU"]["value"] for server in report["servers"]]
    ratio = cpu[0] / cpu[1]
    what = f"CPU time of a set with --sync 1000, {cpu[0]:.2f} us, over without a log, {cpu[1]:.2f} us"
    row("6", what, f"{ratio:.2f}", "1.25", ratio <= 1.25)


def bar_7():
    ours = Todana("--data-dir", f"{SCRATCH}/always", "--sync", "always")
    os.mkdir(f"{SCRATCH}/append")
    theirs = RIVAL and Rival(
        f"{SCRATCH}/append", "--appendonly", "yes", "--appendfsync", "always", "--auto-aof-rewrite-percentage", 0
    )
    # With two threads, the rival's benchmark checks only four times a second whether it has
    # finished. With one thread, the benchmark itself may be the bottleneck. The better result
    # counts.
    count, rates = 200_000, {"ours": [], "theirs, 1 thread": [], "theirs, 2 threads": []}
    for seed in range(ROUNDS):
        words = ["--cold", "--ratio", "0:1", "--keys", 1_000_000, "--value-size", 8, "--requests", count, "--seed", seed]
        rates["ours"].append(ours.bench(*words)["servers"][0]["medians"]["throughput"]["value"])
        for threads, name in enumerate(list(rates)[1:], 1) if theirs else []:
            words = [RIVAL[1], "-h", "127.0.0.1", "-p", theirs.port, "-c", 50, "-n", count, "-r", 1_000_000, "-q"]
            words += ["--threads", threads] if threads > 1 else []
            words = [str(word) for word in [*words, "SET", "__rand_int__", "12345678"]]
            out = subprocess.run(words, stdout=subprocess.PIPE, timeout=PATIENCE_S, check=True).stdout.decode()
            rates[name].append(float(re.findall(r"([0-9.]+) requests per second", out)[-1]))
    ours.stop()
    for name, those in rates.items() if theirs else []:
        print(f"   {name}:", *(f"{rate:.0f}" for rate in those))
    our = median(rates.pop("ours"))
    if not theirs:
        row("7", "sets a second with --sync always, 50 connections", f"{our:.0f}", "the rival's", None)
        return
    theirs.stop()
    their = max(median(those) for those in rates.values())
    what = f"sets a second, --sync always, 50 connections, {our:.0f}, over the rival's, {their:.0f}"
    row("7", what, f"{our / their:.2f}", "1.0 or more", our >= their)


def main():
    if RIVAL:
        print("rival:", subprocess.run([RIVAL[0], "--version"], stdout=subprocess.PIPE).stdout.decode().split(" sha")[0])
    else:
        print("rival: none; bars 5 and 7 need redis-server or valkey-server and its benchmark, in the PATH or as RIVAL")
    directory = Directory(f"{SCRATCH}/data")
    if {"4", "5", "9"} & set(BARS):
        print(f"== {RECORDS} records of 8 digits, value of 8 digits, and {TAIL} more in the log", flush=True)
        prepare(directory)
    bars = [("9", lambda: bar_9(directory)), ("5", lambda: bar_5(directory)), ("4", lambda: bar_4(directory))]
    for bar, measure in [*bars, ("6", bar_6), ("7", bar_7)]:
        if bar in BARS:
            print(f"== {bar}", flush=True)
            measure()
    print("\n| # | what | figure | bar |\n|---|---|---:|---:|")
    for bar, what, figure, limit, holds in sorted(ROWS, key=lambda row: row[0]):
        print(f"| {bar} | {what} | {figure} | {limit}{'' if holds is not False else ', **missed**'} |")


# The servers are also stopped if durability.sh ends this program at its time limit.
signal.signal(signal.SIGTERM, lambda *_: sys.exit("the time limit is reached"))
try:
    main()
finally:
    for child in CHILDREN:
        if child.poll() is None:
            child.kill()
            child.wait()
    shutil.rmtree(SCRATCH, ignore_errors=True)
