#!/usr/bin/env python3
"""How many of the same requests miss in Todana and in memcached with the same memory?

For each trace, memcached's limit (-m) is the number of MiB in which about a tenth of the trace's
keys fit, with keys of 40 bytes and values of 100 bytes. The trace is replayed on it (`todana bench
replay`: a get for each request, and a set after a miss), and its anonymous memory (RssAnon) is
measured. Then Todana gets the same amount as -m, rounded down to MiB, and the same requests. If its
RssAnon at the end is above memcached's, it runs again with less. Bar: 0.80 of memcached's misses.

A trace with few keys measures the programs instead of their data: a tenth of 13,756 keys is 0.2 MB
in a process of 5 MB, and memcached has at least a page of 1 MiB per slab class. So each trace is
also replayed in several copies, each with its own keys. Requests are also drawn from a large number
of keys by Zipf's law.

Usage: trace_rival.py [--todana TODANA [--server TODANA]] [--memcached PATH] [--option WORD]...
                      [--threads N] [--window N] TRACE...
A TRACE is FILE, FILE*COPIES, or zipf:S*KEYS*REQUESTS. --option passes a word to memcached, such as
--option=-C. Needs python3, memcached and a build. The exit code is 1 if the bar is missed.
"""

import argparse
import json
import os
import shutil
import socket
import subprocess
import sys
import time

BAR = 0.80
SHARE = 0.10
# Header, CAS, key and value take 199 bytes. memcached's slab class for them has 240 bytes, or 192
# without CAS (-C).
ITEM_BYTES = {True: 240, False: 192}
PAGE = 1 << 20


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def resident(pid):
    with open(f"/proc/{pid}/status") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith("RssAnon"))


class Server:
    def __init__(self, command):
        self.port = free_port()
        port = ["-l", "127.0.0.1", "-p", str(self.port)]
        self.process = subprocess.Popen(command + port, stdout=subprocess.DEVNULL)
        for _ in range(100):
            try:
                socket.create_connection(("127.0.0.1", self.port)).close()
                return
            except OSError:
                time.sleep(0.1)
        sys.exit(f"{command[0]} does not listen")

    def stop(self):
        self.process.terminate()
        self.process.wait()


def words_of(trace):
    name, *numbers = trace.split("*")
    if name.startswith(("zipf:", "uniform")):
        return [name, "--keys", numbers[0], "--requests", numbers[1]]
    return [name] + (["--copies", numbers[0]] if numbers else [])


def replay(options, trace, more):
    command = [options.todana, "bench", "replay", *words_of(trace), "--window", str(options.window), "--force", "--json", *more]
    done = subprocess.run(command, stdout=subprocess.PIPE)
    if done.returncode:
        sys.exit(f"{trace}: the replay fails")
    return json.loads(done.stdout)


def measure(options, trace, command):
    """Replays the trace on a new server. Returns the figures and the server's memory at the end."""
    server = Server(command)
    try:
        figures = replay(options, trace, [f"127.0.0.1:{server.port}"])
        return figures | {"resident": resident(server.process.pid)}
    finally:
        server.stop()


def show(name, figures, limit):
    print(f"  {name:10} -m {limit:<4} RssAnon {figures['resident'] / 1e6:7.2f} MB, "
          f"{figures['curr_items']} records = {figures['curr_items'] / figures['keys']:.3f} of the keys, "
          f"{figures['misses']} misses = {figures['miss_ratio'] * 100:.2f} %, {figures['refused']} sets refused, "
          f"{figures['seconds']:.0f} s", flush=True)


def contest(options, trace):
    plan = replay(options, trace, ["--dry-run"])
    capacity = plan["keys"] * SHARE
    item = ITEM_BYTES["-C" not in options.option]
    # memcached requires at least twice the size of its longest item.
    limit = max(2, round(capacity / (PAGE // item)))
    print(f"{os.path.basename(trace)}: {plan['requests']} requests, {plan['keys']} keys, a tenth of them {capacity:.0f}")
    common = ["-t", str(options.threads)]
    theirs_command = [options.memcached, "-u", "root", "-U", "0", *common, *options.option]
    theirs = measure(options, trace, theirs_command + ["-m", str(limit)])
    show("memcached", theirs, limit)
    for limit in range(theirs["resident"] // PAGE, 0, -1):
        ours = measure(options, trace, [options.server or options.todana, "serve", *common, "-m", str(limit)])
        show("todana", ours, limit)
        if ours["resident"] <= theirs["resident"]:
            break
    ratio = ours["misses"] / theirs["misses"]
    held = ours["curr_items"] / theirs["curr_items"]
    print(f"  misses {ratio:.3f} of memcached's (bar {BAR:.2f}: {'met' if ratio <= BAR else 'MISSED'}), at {held:.2f} times "
          f"the records in {ours['resident'] / theirs['resident']:.3f} of the memory", flush=True)
    return ratio


def main():
    target = os.environ.get("CARGO_TARGET_DIR", os.path.join(os.path.dirname(__file__), "..", "target"))
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("traces", nargs="+", metavar="TRACE")
    parser.add_argument("--todana", default=os.path.join(target, "release", "todana"))
    parser.add_argument("--server", metavar="TODANA", help="another build of Todana, of which the server is measured")
    parser.add_argument("--memcached", default=shutil.which("memcached"))
    parser.add_argument("--option", action="append", default=[])
    parser.add_argument("--threads", type=int, default=4)
    parser.add_argument("--window", type=int, default=16)
    options = parser.parse_args()
    if not options.memcached:
        sys.exit("skipped: memcached not found")
    ratios = [contest(options, trace) for trace in options.traces]
    sys.exit(any(ratio > BAR for ratio in ratios))


main()
