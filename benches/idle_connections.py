"""How much memory does an idle connection take in the server?

Opens 10,000 connections, sends one get on each, and reads RssAnon.

Usage: idle_connections.py PORT PID [CONNECTIONS]
"""

import resource
import socket
import sys

PORT, PID = int(sys.argv[1]), sys.argv[2]
COUNT = int(sys.argv[3]) if len(sys.argv) > 3 else 10_000
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (min(COUNT + 100, hard), hard))


def resident():
    with open(f"/proc/{PID}/status") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith("RssAnon"))


def get(connection):
    connection.sendall(b"get k\r\n")
    assert connection.recv(100) == b"END\r\n"


get(socket.create_connection(("127.0.0.1", PORT)))
before = resident()
connections = []
for _ in range(COUNT):
    connection = socket.create_connection(("127.0.0.1", PORT))
    get(connection)
    connections.append(connection)
after = resident()
print(f"{COUNT} idle connections: RssAnon {before / 1e6:.1f} -> {after / 1e6:.1f} MB, {(after - before) / COUNT:.0f} bytes each")
