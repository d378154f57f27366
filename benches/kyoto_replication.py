"""Do servers that replicate each other converge, even if each is killed during the load?

Usage: kyoto_replication.py TODANA KTSERVER [SHAPE...]

Each shape consists of a few servers of TODANA and KTSERVER. KTSERVER is an executable of Kyoto
Tycoon 0.9.56, which you must build yourself. The servers get WRITES (20000) mixed writes: set, add,
replace, append, increment, swaps, removals, records that expire, bulk calls, binary keys and
values, one clear. Each server is killed (SIGKILL) once during the writes, and started again. Then
all records of all servers are compared, with their expiries. The program prints a table, and fails
if the servers of a row differ.

The only concessions to the original are these:
- It stores its data in a .kch file. Data in memory would be lost with the process, although its
  update log stays.
- If the original is a master and is killed, its database may have changes of the last 100 ms that
  its update log has lost. The program writes their keys again after the restart, as an operator
  would have to.
- In a pair, each side writes its own keys, because the order of two concurrent writes to one key is
  undefined. For the same reason the clear waits until the pair is idle, and until the original's
  stored position is after the clear. The original stores its position only when a connection ends.
"""

import os
import random
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from base64 import b64decode, b64encode

if len(sys.argv) < 3:
    sys.exit(__doc__)
TODANA, KTSERVER = sys.argv[1:3]
WRITES = int(os.environ.get("WRITES", "20000"))
SEED = int(os.environ.get("SEED", str(random.randrange(1 << 32))))
# A step that takes longer has failed.
PATIENCE_S = 120
# Records with an expiry expire within this time.
SHORT_S = 4
NEVER = (1 << 40) - 1
# The update log of the original is flushed every 100 ms.
UNSURE_S = 1.0

SCRATCH = tempfile.mkdtemp(prefix="replication-", dir=os.environ.get("TMPDIR", "/var/tmp"))
CHILDREN = []


class Closed(Exception):
    """A server ended during a call."""


class Client:
    """A connection with the calls that this program needs."""

    def __init__(self, port):
        self.socket = socket.create_connection(("127.0.0.1", port), PATIENCE_S)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.input = b""

    def send(self, data):
        try:
            self.socket.sendall(data)
        except OSError as error:
            raise Closed from error

    def fill(self):
        try:
            piece = self.socket.recv(1 << 20)
        except ConnectionError as error:
            raise Closed from error
        if not piece:
            raise Closed
        self.input += piece

    def take(self, length):
        while len(self.input) < length:
            self.fill()
        taken, self.input = self.input[:length], self.input[length:]
        return taken

    def head(self):
        while b"\r\n\r\n" not in self.input:
            self.fill()
        head, _, self.input = self.input.partition(b"\r\n\r\n")
        return head.decode()

    def call(self, name, **pairs):
        """Calls a remote procedure. Returns its status and its output."""
        body = b"".join(b64encode(key.encode()) + b"\t" + b64encode(as_bytes(value)) + b"\n" for key, value in pairs.items())
        return self.call_raw(name, body)

    def call_raw(self, name, body):
        head = f"POST /rpc/{name} HTTP/1.1\r\nContent-Type: text/tab-separated-values; colenc=B\r\nContent-Length: {len(body)}\r\n\r\n"
        self.send(head.encode() + body)
        head = self.head()
        fields = {k.lower(): v.strip() for k, v in (line.split(":", 1) for line in head.split("\r\n")[1:])}
        body = self.take(int(fields["content-length"]))
        coding = fields.get("content-type", "").partition("colenc=")[2]
        pairs = {}
        for line in body.split(b"\n"):
            key, tab, value = line.partition(b"\t")
            if tab:
                pairs[decoded(key, coding)] = decoded(value, coding)
        return int(head.split(" ", 2)[1]), pairs

    def set_bulk(self, records):
        """Stores (key, value, xt) records by the binary protocol."""
        out = [struct.pack(">BII", 0xB8, 0, len(records))]
        for key, value, xt in records:
            out.append(struct.pack(">HIIq", 0, len(key), len(value), xt) + key + value)
        self.send(b"".join(out))
        self.answered(0xB8)

    def remove_bulk(self, keys):
        out = [struct.pack(">BII", 0xB9, 0, len(keys))]
        out += [struct.pack(">HI", 0, len(key)) + key for key in keys]
        self.send(b"".join(out))
        self.answered(0xB9)

    def answered(self, magic):
        if self.take(1)[0] != magic:
            sys.exit("a bulk call was refused")
        return struct.unpack(">I", self.take(4))[0]

    def get_bulk(self, keys):
        """Returns value and expiry of the existing records among these keys."""
        out = [struct.pack(">BII", 0xBA, 0, len(keys))]
        out += [struct.pack(">HI", 0, len(key)) + key for key in keys]
        self.send(b"".join(out))
        found = {}
        for _ in range(self.answered(0xBA)):
            _, key_len, value_len, xt = struct.unpack(">HIIq", self.take(18))
            key = self.take(key_len)
            found[key] = (self.take(value_len), xt)
        return found

    def all_records(self):
        status, pairs = self.call("match_prefix", prefix=b"")
        if status != 200:
            sys.exit(f"match_prefix: {status} {pairs}")
        keys = sorted(key[1:] for key in pairs if key.startswith(b"_"))
        found = {}
        for at in range(0, len(keys), 1000):
            found |= self.get_bulk(keys[at : at + 1000])
        return found


def as_bytes(value):
    return value if isinstance(value, bytes) else str(value).encode()


def decoded(column, coding):
    if coding == "B":
        return b64decode(column)
    if coding == "U":
        parts = column.split(b"%")
        return parts[0] + b"".join(bytes([int(part[:2], 16)]) + part[2:] for part in parts[1:])
    return column


def free_port():
    """Returns a free port that is low enough for the original's tools."""
    while True:
        port = random.randrange(20000, 32000)
        with socket.socket() as some:
            try:
                some.bind(("127.0.0.1", port))
                return port
            except OSError:
                pass


class Server:
    """A server that can be killed and started again."""

    def __init__(self, kind, folder, number):
        self.kind, self.number, self.port = kind, number, free_port()
        self.folder = os.path.join(folder, f"{number}-{kind}")
        os.makedirs(self.folder)
        self.master = None
        self.child, self.killed_at = None, float("inf")
        # Keys that the update log may have lost, with the time of their last write.
        self.unsure = {}

    def path(self, name):
        return os.path.join(self.folder, name)

    def words(self):
        if self.kind == "todana":
            words = [TODANA, "serve", "-p", self.port, "-m", 0, "-t", 2, "--admin-port", 0, "--server-id", self.number]
            words += ["--replica-position", self.path("position"), "--data-dir", self.path("data")]
            words += ["--checkpoint-log-size", "1m", "--log-segment-size", "1m"]
            return words + (["--replicate", f"127.0.0.1:{self.master.port}"] if self.master else [])
        words = [KTSERVER, "-host", "127.0.0.1", "-port", self.port, "-th", 4, "-log", self.path("log"), "-ls"]
        words += ["-ulog", self.path("ulog"), "-sid", self.number, "-rts", self.path("position"), "-riv", 0]
        words += ["-mhost", "127.0.0.1", "-mport", self.master.port] if self.master else []
        return words + [self.path("db.kch")]

    def start(self):
        with open(self.path("out"), "ab") as out:
            self.child = subprocess.Popen([str(word) for word in self.words()], stdout=out, stderr=out)
        CHILDREN.append(self.child)
        end = time.monotonic() + PATIENCE_S
        while True:
            try:
                # The server may accept connections before its data is loaded, and replies
                # afterwards.
                if Client(self.port).call("void")[0] == 200:
                    return
            except (OSError, Closed):
                pass
            if self.child.poll() is not None or time.monotonic() > end:
                sys.exit(f"{self.child.args} does not serve: see {self.folder}")
            time.sleep(0.02)

    def kill(self):
        self.child.send_signal(signal.SIGKILL)
        self.child.wait(PATIENCE_S)

    def stop(self):
        if self.child and self.child.poll() is None:
            self.child.terminate()
            self.child.wait(PATIENCE_S)


class Writer:
    """Writes random records from a seed to one server."""

    def __init__(self, server, prefix, seed):
        self.server, self.prefix = server, prefix
        self.random = random.Random(seed)
        self.client = Client(server.port)

    def reconnect(self):
        """Repeats, after a restart, the writes that the original's log may have lost."""
        self.client = Client(self.server.port)
        if self.server.kind == "todana":
            return
        keys = [key for key, at in self.server.unsure.items() if self.server.killed_at - at < UNSURE_S]
        found = self.client.get_bulk(keys)
        for key in keys:
            if key in found:
                value, xt = found[key]
                self.client.call("set", key=key, value=value, xt=-xt)
            else:
                self.client.call("remove", key=key)

    def key(self):
        number = self.random.randrange(2500)
        if number % 5 == 0:
            # This key may contain any bytes.
            return self.prefix + random.Random(number).randbytes(1 + number % 40)
        return self.prefix + b"key:%d" % number

    def value(self):
        kind = self.random.randrange(100)
        if kind == 0:
            return self.random.randbytes(self.random.randrange(20_000, 200_000))
        if kind < 30:
            return b"%d" % self.random.randrange(1 << 40)
        return self.random.randbytes(self.random.randrange(400))

    def xt(self):
        """Returns the expiry of a write: for 1/12 of them soon, for 1/4 in days, otherwise none."""
        kind = self.random.randrange(12)
        if kind == 0:
            return {"xt": 1 + self.random.randrange(SHORT_S)}
        if kind < 4:
            return {"xt": 100_000 + self.random.randrange(100_000)}
        return {}

    def write(self):
        """Sends one call and returns its number of writes."""
        kinds = "set set set set add replace append append increment increment increment_double remove remove cas seize bulk".split()
        kind = self.random.choice(kinds)
        key, xt = self.key(), self.xt()
        if kind.startswith("increment"):
            key = self.prefix + kind.encode() + b":%d" % self.random.randrange(40)
        count = 1
        touched = [key]
        if kind == "bulk":
            touched = [self.key() for _ in range(2 + self.random.randrange(20))]
            count = len(touched)
        for each in touched:
            self.server.unsure[each] = time.monotonic()
        if kind in ("set", "add", "replace", "append"):
            status, _ = self.client.call(kind, key=key, value=self.value(), **xt)
        elif kind.startswith("increment"):
            status, _ = self.client.call(kind, key=key, num=self.random.randrange(-50, 100), **xt)
        elif kind == "cas":
            old = self.client.get_bulk([key]).get(key)
            pairs = {"oval": old[0]} if old else {}
            status, _ = self.client.call("cas", key=key, nval=self.value(), **pairs, **xt)
        elif kind in ("remove", "seize"):
            status, _ = self.client.call(kind, key=key)
        else:
            status = 200
            which = self.random.randrange(4)
            if which == 0:
                self.client.remove_bulk(touched)
            elif which == 1:
                body = [(b"_" + each, self.value()) for each in touched]
                body = b"".join(b64encode(k) + b"\t" + b64encode(v) + b"\n" for k, v in body)
                status, _ = self.client.call_raw("set_bulk", body)
            else:
                self.client.set_bulk([(each, self.value(), xt.get("xt", NEVER)) for each in touched])
        if status not in (200, 450):
            sys.exit(f"{kind} on a {self.server.kind}: {status}")
        return count


def comparison(servers):
    """Returns all records of each server, and how many differ from the first server's."""
    contents = [Client(server.port).all_records() for server in servers]
    differing = sum(
        1 for other in contents[1:] for key in contents[0].keys() | other.keys() if contents[0].get(key) != other.get(key)
    )
    return contents, differing


def converge(servers, patience_s=PATIENCE_S):
    """Waits until all servers have the same records. Returns records, differences and time."""
    began = time.monotonic()
    while True:
        contents, differing = comparison(servers)
        took = time.monotonic() - began
        if differing == 0 or took > patience_s:
            return contents, differing, took
        time.sleep(0.2)


def shape(name, kinds, links, writers_at):
    """Runs a shape and returns true if its servers converge.

    `links` has the indexes of each replica and its master. `writers_at` has the indexes of the
    servers that get writes.
    """
    folder = os.path.join(SCRATCH, name.replace(" ", "-"))
    servers = [Server(kind, folder, number + 1) for number, kind in enumerate(kinds)]
    for follower, master in links:
        servers[follower].master = servers[master]
    for server in servers:
        server.start()
    writers = [Writer(servers[at], b"%d/" % at, SEED + at) for at in writers_at]
    share = WRITES / (len(servers) + 2)
    total, cleared, killed = 0, False, 0
    back_at = {}
    # A killed server stays down for a third of a share, while the others continue.
    began = time.monotonic()
    while total < WRITES:
        if not cleared and total > share / 2:
            converge(servers, 30)
            writers[0].client.call("clear")
            writers[0].server.unsure.clear()
            converge(servers, 30)
            time.sleep(UNSURE_S + 0.2)
            cleared = True
            if len(writers) > 1:
                # The original stops only after its clients have disconnected.
                for writer in writers:
                    writer.client.socket.close()
                settle(servers)
                for writer in writers:
                    writer.reconnect()
        if killed < len(servers) and total > share * (killed + 1):
            # The next server is killed only after the previous one has been started again.
            if not back_at:
                servers[killed].kill()
                servers[killed].killed_at = time.monotonic()
                back_at[killed] = total + share / 3
                killed += 1
        for index, at in list(back_at.items()):
            alone = all(writer.server is servers[index] for writer in writers)
            if total >= at or alone:
                servers[index].start()
                del back_at[index]
                for writer in writers:
                    if writer.server is servers[index]:
                        writer.reconnect()
        for writer in writers:
            if writer.server.child.poll() is None:
                total += writer.write()
    for index in list(back_at):
        servers[index].start()
        for writer in writers:
            if writer.server is servers[index]:
                writer.reconnect()
    wrote_s = time.monotonic() - began
    contents, differing, took = converge(servers)
    # After this pause, all records with a short expiry have expired on all servers.
    time.sleep(SHORT_S + 2)
    contents, differing, _ = converge(servers, 10)
    mortal = sum(1 for _, xt in contents[0].values() if xt != NEVER)
    for server in servers:
        server.stop()
    holds = differing == 0 and killed == len(servers) and cleared and len(contents[0]) > 0
    print(
        f"{name:42} {total:7} {killed:5} {len(contents[0]):8} {mortal:7} {differing:9} {wrote_s:7.1f} {took:8.1f}  {'yes' if holds else 'NO'}",
        flush=True,
    )
    if differing:
        for other in range(1, len(servers)):
            keys = [k for k in contents[0].keys() | contents[other].keys() if contents[0].get(k) != contents[other].get(k)]
            print(f"   1 and {other + 1} differ in {len(keys)} records:")
            for key in keys[:3]:
                print(f"      {key}: {str(contents[0].get(key))[:60]} and {str(contents[other].get(key))[:60]}")
    return holds


def settle(servers):
    """Ends the masters' connections, so that originals that are replicas store their positions."""
    for server in servers:
        if server.kind == "ktserver" and server.master:
            server.stop()
            server.start()


SHAPES = {
    "ktserver-of-todana": (["todana", "ktserver"], [(1, 0)], [0]),
    "todana-of-ktserver": (["ktserver", "todana"], [(1, 0)], [0]),
    "todana-of-todana": (["todana", "todana"], [(1, 0)], [0]),
    "pair-todana-ktserver": (["todana", "ktserver"], [(0, 1), (1, 0)], [0, 1]),
    "pair-todana-todana": (["todana", "todana"], [(0, 1), (1, 0)], [0, 1]),
    "chain-todana-ktserver-todana": (["todana", "ktserver", "todana"], [(1, 0), (2, 1)], [0]),
    "chain-ktserver-todana-ktserver": (["ktserver", "todana", "ktserver"], [(1, 0), (2, 1)], [0]),
    "chain-todana-todana-todana": (["todana", "todana", "todana"], [(1, 0), (2, 1)], [0]),
}


def main():
    names = sys.argv[3:] or list(SHAPES)
    print(f"{WRITES} writes each, seed {SEED}")
    print(f"{'shape':42} {'writes':>7} {'kills':>5} {'records':>8} {'mortal':>7} {'differing':>9} {'wrote s':>7} {'settle s':>8}  equal")
    outcomes = [shape(name, *SHAPES[name]) for name in names]
    if all(outcomes):
        shutil.rmtree(SCRATCH, ignore_errors=True)
        return
    sys.exit(f"some shapes failed; see {SCRATCH}")


try:
    main()
finally:
    for child in CHILDREN:
        if child.poll() is None:
            child.kill()
            child.wait()
