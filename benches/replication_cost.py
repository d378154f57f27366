#!/usr/bin/env python3
"""Measures what a replica costs its master, and what a change costs on the way.

usage: replication_cost.py TODANA REDIS_SERVER [--rounds N] [--sets N]

In each round, a master alone, a master with one replica, and Redis with one replica get the same
sets from `todana bench`, 50 clients, one at a time and 16 deep. The figures are medians over the
rounds: microseconds of CPU time (user and system) of a process for one set, and bytes on the
connection from master to replica for one set. Needs Linux, Python 3 and `ss`.
"""
import argparse
import os
import re
import socket
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

TICKS = os.sysconf("SC_CLK_TCK")


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def cpu_us(process):
    fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) * 1_000_000 / TICKS


def ask(port, request):
    with socket.create_connection(("127.0.0.1", port), 60) as stream:
        stream.sendall(request)
        return stream.recv(1 << 20)


def start(command, port):
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    for _ in range(500):
        try:
            socket.create_connection(("127.0.0.1", port)).close()
            return process
        except OSError:
            time.sleep(0.02)
    raise SystemExit(f"{command} does not start")


def wait_until(what, holds):
    for _ in range(3000):
        if holds():
            return
        time.sleep(0.02)
    raise SystemExit(f"never: {what}")


def sent_to(replica):
    """Returns the bytes that the replica has received on its one connection to the master."""
    text = subprocess.run(["ss", "-tinpH"], capture_output=True, text=True, check=True).stdout
    pairs = re.findall(r"^(\S.*)\n\s+(.*)", text, re.M)
    own = [info for head, info in pairs if f"pid={replica.pid}," in head]
    found = [re.search(r"bytes_received:(\d+)", info) for info in own]
    return max([int(match[1]) for match in found if match] + [0])


class Todana:
    def __init__(self, todana, folder, has_replica):
        self.port, self.processes = free_port(), []
        command = [todana, "serve", "-p", str(self.port), "--data-dir", f"{folder}/m", "--server-id", "1", "-m", "2g"]
        self.master = start(command, self.port)
        self.processes.append(self.master)
        self.replica = None
        if has_replica:
            self.replica_port = free_port()
            command = [todana, "serve", "-p", str(self.replica_port), "--data-dir", f"{folder}/r", "-m", "2g"]
            command += ["--server-id", "2", "--replicate", f"todana://127.0.0.1:{self.port}"]
            self.replica = start(command, self.replica_port)
            self.processes.append(self.replica)

    def settle(self):
        if self.replica:
            ask(self.port, b"set mark 0 0 8\r\n%08d\r\n" % int(time.time() % 1e8))
            token = ask(self.port, b"mg mark Y\r\n").split()[1].decode()
            wait_until("the replica", lambda: ask(self.replica_port, f"mg mark {token}\r\n".encode())[:2] == b"HD")


class Redis:
    def __init__(self, redis, folder):
        self.port, self.replica_port = free_port(), free_port()
        common = [redis, "--save", "", "--dir", folder, "--daemonize", "no"]
        self.master = start([*common, "--port", str(self.port), "--repl-diskless-sync-delay", "0"], self.port)
        command = [*common, "--port", str(self.replica_port), "--replicaof", "127.0.0.1", str(self.port)]
        self.replica = start(command, self.replica_port)
        self.processes = [self.master, self.replica]
        wait_until("Redis' replica", lambda: b"master_link_status:up" in ask(self.replica_port, b"INFO replication\r\n"))

    def settle(self):
        def offset(port, name):
            return re.search(name + rb":(\d+)", ask(port, b"INFO replication\r\n"))[1]
        wait_until("Redis' replica", lambda: offset(self.port, b"master_repl_offset") == offset(self.replica_port, b"slave_repl_offset"))

    def write(self, count, depth):
        bench = ["redis-benchmark", "-p", str(self.port), "-t", "set", "-n", str(count), "-r", "100000", "-d", "8", "-c", "50"]
        subprocess.run([*bench, "-P", str(depth), "-q"], check=True, capture_output=True)


def write(todana, server, count, depth):
    command = [todana, "bench", f"127.0.0.1:{server.port}", "--force", "--cold", "--ratio", "0:1", "--requests"]
    # The same lengths as those of redis-benchmark.
    command += [str(count), "--pipeline", str(depth), "--threads", "1", "--keys", "100000"]
    command += ["--key-prefix", "key:", "--key-size", "12", "--value-size", "8"]
    subprocess.run(command, check=True, capture_output=True)


def measure(server, run, count):
    run(count // 10)
    server.settle()
    before = cpu_us(server.master), server.replica and cpu_us(server.replica), server.replica and sent_to(server.replica)
    run(count)
    server.settle()
    figures = {"master": (cpu_us(server.master) - before[0]) / count}
    if server.replica:
        figures["replica"] = (cpu_us(server.replica) - before[1]) / count
        figures["bytes"] = (sent_to(server.replica) - before[2]) / count
    return figures


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("todana")
    arguments.add_argument("redis")
    arguments.add_argument("--rounds", type=int, default=5)
    arguments.add_argument("--sets", type=int, default=500_000)
    arguments = arguments.parse_args()
    for depth in (1, 16):
        all_figures = {}
        for _ in range(arguments.rounds):
            for name in ("alone", "with a replica", "redis"):
                with tempfile.TemporaryDirectory() as folder:
                    if name == "redis":
                        server = Redis(arguments.redis, folder)
                        run = lambda count: server.write(count, depth)
                    else:
                        server = Todana(arguments.todana, folder, name != "alone")
                        run = lambda count: write(arguments.todana, server, count, depth)
                    try:
                        for figure, value in measure(server, run, arguments.sets).items():
                            all_figures.setdefault((name, figure), []).append(value)
                    finally:
                        for process in server.processes:
                            process.kill()
                            process.wait()
        medians = {key: statistics.median(values) for key, values in all_figures.items()}
        print(f"{depth} deep:")
        for (name, figure), value in medians.items():
            print(f"  {name}, {figure}: {value:.3f}")
        alone, ours = medians["alone", "master"], medians["with a replica", "master"]
        print(f"  master with a replica over alone: {ours / alone:.3f}")
        print(f"  replica over a client's set: {medians['with a replica', 'replica'] / alone:.3f}")
        print(f"  bytes over Redis': {medians['with a replica', 'bytes'] / medians['redis', 'bytes']:.3f}", flush=True)


main()
