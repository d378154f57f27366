#!/usr/bin/env python3
"""Compares the CPU time of a request through several proxies of the same three servers.

usage: proxy.py TODANA MEMCACHED [--nutcracker PATH] [--todana-too NAME=PATH ...]
                [--rounds N] [--only WORD]

TODANA is the executable of Todana. MEMCACHED is a memcached built with --enable-proxy: three of it
are the servers, and one is a rival. Each proxy has one worker. The proxies take turns in each
round, and the figures are medians over the rounds: microseconds of CPU time (user and system) of
the process for one request. Needs Python 3 and Linux.
"""
import argparse
import glob
import selectors
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

VALUE = b"v" * 8
LARGE = b"L" * 1_000_000
KEYS = 10_000


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def await_port(port, process):
    for _ in range(500):
        try:
            socket.create_connection(("127.0.0.1", port)).close()
            return
        except OSError:
            if process.poll() is not None:
                sys.exit(f"{process.args[0]}: ended with status {process.returncode}")
            time.sleep(0.02)
    sys.exit(f"{process.args[0]}: does not listen on port {port}")


def cpu_ns(pid):
    return sum(int(Path(path).read_text().split()[0]) for path in glob.glob(f"/proc/{pid}/task/*/schedstat"))


def key(number):
    return b"key-%08d" % (number % KEYS)


class Load:
    """Requests of clients, each of which waits for the replies to a batch before the next one."""

    def __init__(self, clients, batch, batches, request, reply_len):
        self.clients, self.batch, self.batches = clients, batch, batches
        self.request, self.reply_len = request, reply_len

    def run(self, port):
        selector = selectors.DefaultSelector()
        left, number = self.batches, 0
        waiting = {}

        def send(client):
            nonlocal left, number
            if left == 0:
                selector.unregister(client)
                client.close()
                return
            left -= 1
            payload = b"".join(self.request(number + i) for i in range(self.batch))
            number += self.batch
            waiting[client] = self.reply_len * self.batch
            client.sendall(payload)

        for _ in range(self.clients):
            client = socket.create_connection(("127.0.0.1", port))
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            selector.register(client, selectors.EVENT_READ)
            send(client)
        while selector.get_map():
            for event, _ in selector.select():
                client = event.fileobj
                data = client.recv(1 << 20)
                if not data:
                    sys.exit("the proxy closed a connection")
                waiting[client] -= len(data)
                if waiting[client] < 0:
                    sys.exit(f"unexpected reply: {data[:80]!r}")
                if waiting[client] == 0:
                    send(client)
        return number


def get(number):
    return b"get %s\r\n" % key(number)


def multiget(number):
    return b"get %s\r\n" % b" ".join(key(number * 30 + i) for i in range(30))


def store(number):
    return b"set %s 0 0 8\r\n%s\r\n" % (key(number), VALUE)


def store_large(number):
    return b"set %s 0 0 1000000\r\n%s\r\n" % (key(number % 30), LARGE)


HIT = len(b"VALUE %s 0 8\r\n" % key(0)) + len(VALUE) + 2
LOADS = {
    "get, 50 clients": Load(50, 1, 40_000, get, HIT + 5),
    "get, 50 clients, 16 deep": Load(50, 16, 10_000, get, HIT + 5),
    "set, 50 clients": Load(50, 1, 40_000, store, 8),
    "set, 50 clients, 16 deep": Load(50, 16, 10_000, store, 8),
    "multiget of 30, 1 client": Load(1, 1, 4_000, multiget, 30 * HIT + 5),
    "multiget of 30, 50 clients": Load(50, 1, 8_000, multiget, 30 * HIT + 5),
    "set of 1 MB, 1 client": Load(1, 1, 300, store_large, 8),
    "set of 1 MB, 4 clients": Load(4, 1, 300, store_large, 8),
}


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("todana")
    parser.add_argument("memcached")
    parser.add_argument("--nutcracker")
    parser.add_argument("--todana-too", action="append", default=[])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    processes = []

    def start(words, port):
        process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        processes.append(process)
        await_port(port, process)
        return process.pid, port

    with tempfile.TemporaryDirectory() as folder:
        # memcached reads its configuration as another user.
        Path(folder).chmod(0o755)
        try:
            compare(options, Path(folder), start)
        finally:
            for process in processes:
                process.kill()
                process.wait()


def compare(options, folder, start):
    servers = []
    for _ in range(3):
        port = free_port()
        words = [options.memcached, "-u", "nobody", "-l", "127.0.0.1", "-p", str(port), "-t", "1"]
        start(words + ["-m", "1024", "-I", "2m"], port)
        servers.append(port)
    proxies = {}
    for name, path in [("Todana", options.todana)] + [word.split("=", 1) for word in options.todana_too]:
        port = free_port()
        addresses = ",".join(f"127.0.0.1:{server}" for server in servers)
        words = [path, "proxy", "--servers", addresses, "-p", str(port), "-t", "1"]
        proxies[name] = start(words, port)
    if options.nutcracker:
        port = free_port()
        lines = "".join(f"    - 127.0.0.1:{server}:1\n" for server in servers)
        (folder / "n.yml").write_text(
            # nutcracker's default hash puts most keys with successive numbers on one server.
            f"main:\n  listen: 127.0.0.1:{port}\n  hash: md5\n  timeout: 5000\n  servers:\n{lines}"
        )
        words = [options.nutcracker, "-c", str(folder / "n.yml"), "-s", str(free_port()), "-m", "16384"]
        proxies["nutcracker"] = start(words, port)
    port = free_port()
    backends = ", ".join(f'mcp.backend("b{server}", "127.0.0.1", {server})' for server in servers)
    (folder / "p.lua").write_text(
        f"function mcp_config_pools() return mcp.pool({{{backends}}}) end\n"
        "function mcp_config_routes(pool)\n"
        "  local fg = mcp.funcgen_new()\n"
        "  local h = fg:new_handle(pool)\n"
        "  fg:ready({ n = 'main', f = function(rctx) return function(r)\n"
        "    return rctx:enqueue_and_wait(r, h) end end })\n"
        "  mcp.attach(mcp.CMD_ANY_STORAGE, fg)\nend\n"
    )
    words = [options.memcached, "-u", "nobody", "-l", "127.0.0.1", "-p", str(port), "-t", "1", "-I", "2m"]
    proxies["memcached"] = start(words + ["-o", f"proxy_config={folder / 'p.lua'}"], port)
    for _, port in proxies.values():
        Load(1, 1, KEYS, store, 8).run(port)
    print("| load | " + " | ".join(proxies) + " | first over best rival |", flush=True)
    print("|---|" + "---:|" * (len(proxies) + 1))
    for name, load in LOADS.items():
        if options.only not in name:
            continue
        figures = {proxy: [] for proxy in proxies}
        for _ in range(options.rounds):
            for proxy, (pid, port) in proxies.items():
                before = cpu_ns(pid)
                requests = load.run(port)
                figures[proxy].append((cpu_ns(pid) - before) / requests / 1000)
            if load.request is store_large:
                for _, port in proxies.values():
                    Load(1, 1, KEYS, store, 8).run(port)
        medians = {proxy: statistics.median(values) for proxy, values in figures.items()}
        rivals = [medians[proxy] for proxy in ("nutcracker", "memcached") if proxy in medians]
        cells = " | ".join(f"{value:.2f}" for value in medians.values())
        print(f"| {name} | {cells} | {medians['Todana'] / min(rivals):.2f} |", flush=True)


main()
