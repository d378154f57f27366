"""Does the server's memory follow its live bytes?

Stores 5 M records with keys of 16 bytes and values of 20 to 200 bytes, overwrites all of them twice
with values of other sizes, and deletes a random 80 %. Ten seconds later, compares RssAnon with
1.10 x live bytes + 16 MB. Usage: churn.py PORT PID [RECORDS]
"""

import random
import socket
import sys
import time

PORT, PID = int(sys.argv[1]), sys.argv[2]
RECORDS = int(sys.argv[3]) if len(sys.argv) > 3 else 5_000_000
BODY = b"abcdefghijklmnopqrstuvwxyz" * 8
LENS = [b"%d" % n for n in range(201)]


def resident_mb():
    with open(f"/proc/{PID}/status") as status:
        return next(int(line.split()[1]) * 1024 / 1e6 for line in status if line.startswith("RssAnon"))


connection = socket.create_connection(("127.0.0.1", PORT))


def send(pieces):
    """Sends requests without replies, and waits until the server has executed them."""
    connection.sendall(b"".join(pieces) + b"mn\r\n")
    answer = connection.recv(100)
    assert answer == b"MN\r\n", answer


keys = [b"k%015x" % (n * 0x9E3779B97F4A7C15 & (1 << 60) - 1) for n in range(RECORDS)]
lens = bytearray(RECORDS)
for turn in range(3):
    draw = random.Random(turn)
    for start in range(0, RECORDS, 10_000):
        pieces = []
        for n in range(start, min(start + 10_000, RECORDS)):
            size = lens[n] = draw.randint(20, 200)
            pieces.append(b"set %b 0 0 %b noreply\r\n%b\r\n" % (keys[n], LENS[size], BODY[:size]))
        send(pieces)
    print(f"round {turn}: RssAnon {resident_mb():.1f} MB, payload {(sum(lens) + 16 * RECORDS) / 1e6:.1f} MB", flush=True)
draw = random.Random(99)
live = 0
pieces = []
for n in range(RECORDS):
    if draw.random() < 0.8:
        pieces.append(b"delete %b noreply\r\n" % keys[n])
        if len(pieces) == 10_000:
            send(pieces)
            pieces = []
    else:
        live += 16 + lens[n]
send(pieces)
print(f"deleted: RssAnon {resident_mb():.1f} MB", flush=True)
time.sleep(10)
bar = 1.10 * live / 1e6 + 16
print(f"ten seconds later: RssAnon {resident_mb():.1f} MB for {live / 1e6:.1f} MB of keys and values; bar {bar:.1f} MB")
