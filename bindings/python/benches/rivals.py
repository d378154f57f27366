"""How many gets and sets per second does Todana reach, compared with other stores for Python?

    python3 bindings/python/benches/rivals.py [--records 100000] [--rounds 5] [--only NAME ...]

The stores run the same steps in turns: set every record, one by one; close (data on disk is handed
to the system, without an fsync per record); open again; get every record in another order;
overwrite every record in a third order. Keys have 16 bytes, and values have 100 random bytes. Times
are processor times of all threads in user and kernel mode, so that a busy machine matters less.

    todana mem:hash, mem:tree      in memory, and lost when the process ends; not closed between
                                   setting and reading
    todana disk.hash, disk.tree    on disk within a second of the write (sync=1, the default)
    dbm.gnu, shelve on it          on disk when the kernel writes it (mode "n", no "s"); shelve
                                   pickles the values
    diskcache                      SQLite with a write-ahead log, synchronous=NORMAL, its default
    dict                           Python's own dict, for comparison
"""

import argparse
import os
import random
import shelve
import statistics
import tempfile
import time


class Todana:
    def __init__(self, kind):
        self.kind = kind

    def open(self, folder):
        import todana

        return todana.open(self.kind if self.kind.startswith("mem:") else os.path.join(folder, self.kind))

    def outlives(self):
        return not self.kind.startswith("mem:")


class Gnu:
    def open(self, folder):
        import dbm.gnu

        return dbm.gnu.open(os.path.join(folder, "gnu"), "c")

    def outlives(self):
        return True


class Shelve(Gnu):
    def open(self, folder):
        return shelve.Shelf(super().open(folder))


class DiskCache:
    def open(self, folder):
        import diskcache

        return diskcache.Cache(os.path.join(folder, "cache"), eviction_policy="none")

    def outlives(self):
        return True


class Dict:
    def open(self, folder):
        return {}

    def outlives(self):
        return False


SUBJECTS = {
    "todana mem:hash": Todana("mem:hash"),
    "todana mem:tree": Todana("mem:tree"),
    "todana disk.hash": Todana("disk.hash"),
    "todana disk.tree": Todana("disk.tree"),
    "dbm.gnu": Gnu(),
    "shelve (dbm.gnu)": Shelve(),
    "diskcache": DiskCache(),
    "dict": Dict(),
}
STEPS = ["set", "get", "overwrite"]


def measured(run):
    start = time.process_time()
    run()
    return time.process_time() - start


def session(subject, keys, values, seed):
    """Returns the processor time of each step."""
    times = {}
    # Keys of shelve must be str.
    if isinstance(subject, Shelve):
        keys = [key.decode() for key in keys]
    shuffled = random.Random(seed).sample(range(len(keys)), len(keys))
    to_get = [keys[index] for index in shuffled]
    to_set = [(keys[index], values[-index]) for index in random.Random(seed + 1).sample(shuffled, len(keys))]
    with tempfile.TemporaryDirectory(dir=os.environ.get("TMPDIR")) as folder:
        db = subject.open(folder)

        def close():
            nonlocal db
            if subject.outlives():
                db.close()

        def fill():
            for key, value in zip(keys, values):
                db[key] = value
            close()

        def get():
            for key in to_get:
                db[key]

        def overwrite():
            for key, value in to_set:
                db[key] = value
            close()

        times["set"] = measured(fill)
        if subject.outlives():
            db = subject.open(folder)
        times["get"] = measured(get)
        assert db[keys[7]] == values[7]
        times["overwrite"] = measured(overwrite)
        if not subject.outlives() and hasattr(db, "close"):
            db.close()
    return times


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--records", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", nargs="+", choices=SUBJECTS)
    arguments = parser.parse_args()
    chance = random.Random(1)
    keys = [b"user:%011d" % number for number in chance.sample(range(10**11), arguments.records)]
    values = [chance.randbytes(100) for _ in keys]
    found = {}
    for round_number in range(arguments.rounds):
        for name in arguments.only or SUBJECTS:
            try:
                times = session(SUBJECTS[name], keys, values, round_number)
            except ImportError as error:
                if round_number == 0:
                    print(f"{name}: skipped: {error}")
                continue
            for step, seconds in times.items():
                found.setdefault(name, {}).setdefault(step, []).append(arguments.records / seconds)
    print(f"{arguments.records:,} records, median of {arguments.rounds}; thousands per second of processor time")
    print(f"{'':18}" + "".join(f"{step:>11}" for step in STEPS))
    for name, steps in found.items():
        print(f"{name:18}" + "".join(f"{statistics.median(steps[step]) / 1000:11,.0f}" for step in STEPS))
    for rival in ("dbm.gnu", "shelve (dbm.gnu)", "diskcache"):
        if rival not in found:
            continue
        print(f"ratio to {rival}, median of the rounds")
        for name, steps in found.items():
            if name.startswith("todana"):
                ratios = [
                    statistics.median(mine / its for mine, its in zip(steps[step], found[rival][step])) for step in STEPS
                ]
                print(f"  {name:16}" + "".join(f"{ratio:11.2f}" for ratio in ratios))


if __name__ == "__main__":
    main()
