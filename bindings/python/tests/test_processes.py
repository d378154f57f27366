"""Tests threads, forks, kills, and the end of the interpreter."""

import contextlib
import multiprocessing.util
import os
import signal
import subprocess
import sys
import threading

import pytest

import todana


def python(program, *words, **options):
    return subprocess.Popen([sys.executable, "-c", program, *words], stdout=subprocess.PIPE, text=True, **options)


def run_all(count, work):
    """Runs a function in several threads. Re-raises an exception of any of them."""
    failures = []

    def guarded(number):
        try:
            work(number)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=guarded, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
        assert not thread.is_alive(), "a thread hangs"
    if failures:
        raise failures[0]


def test_threads_increment_atomically(db):
    def work(number):
        for turn in range(500):
            db.increment("sum", initial=1)
            db[f"{number}:{turn}"] = str(turn)
            assert db[f"{number}:{turn}"] == b"%d" % turn
            db.change_value("changed", lambda old: str(int(old or 0) + 1))

    run_all(8, work)
    assert (db["sum"], db["changed"]) == (b"4000", b"4000")
    assert len(db) == 4002


def test_snapshots_of_threads_are_consistent(db):
    """Checks that every snapshot shows the same sum while threads transfer money."""
    accounts = [f"account {number}" for number in range(10)]
    db.update({name: "100" for name in accounts})

    def work(number):
        for turn in range(40):
            source, target = accounts[(number + turn) % 10], accounts[(number * 3 + turn * 7 + 1) % 10]
            if number % 4 == 0:
                with db.snapshot() as snapshot:
                    assert sum(int(snapshot[name]) for name in accounts) == 1000
            elif number % 4 == 1:
                db.get(source)
                # Meanwhile, other threads add records that are not accounts.
                assert sum(key.startswith(b"account") for key in set(db)) == 10
                db.set(f"other {number}", "x", sliding=100)
                db.get(f"other {number}")
            else:
                with db.transaction() as t:
                    t.increment(source, -turn)
                    t.increment(target, turn)

    run_all(8, work)
    assert sum(int(db[name]) for name in accounts) == 1000


def test_close_ends_calls_of_other_threads(place):
    db = todana.open(place)
    started = threading.Barrier(5)

    def work(number):
        if number == 0:
            started.wait()
            db.close()
            # No thread uses the database any more. Otherwise a database on disk could not be opened
            # again.
            with todana.open(place) as again:
                again["last"] = "x"
            return
        started.wait()
        try:
            for turn in range(100_000):
                db[f"{number}:{turn}"] = "x"
                db.get(f"{number}:{turn - 1}")
        except todana.ClosedError:
            return
        assert False, "no call raised ClosedError after close"

    run_all(5, work)
    assert db.closed


def test_close_waits_for_a_running_call(tmp_path):
    db = todana.open(tmp_path / "a.hash")
    db["a"] = "1"
    started, release, closed = threading.Event(), threading.Event(), threading.Event()

    class File:
        def write(self, text):
            started.set()
            assert release.wait(120)
            assert not closed.is_set()

    def work(number):
        if number == 0:
            assert db.dump(File()) == 1
        elif number == 1:
            assert started.wait(120)
            db.close()
            closed.set()
            with todana.open(tmp_path / "a.hash") as again:
                assert dict(again) == {b"a": b"1"}
        else:
            # If close did not wait, it would return within this time.
            closed.wait(0.5)
            release.set()

    run_all(3, work)


def test_close_ends_the_wait_for_a_transaction(place):
    db = todana.open(place)
    started = threading.Barrier(9)

    def work(number):
        started.wait()
        if number == 0:
            # The other threads wait for a transaction. The test cannot ensure that one of them
            # already waits when this call begins.
            db.close()
            return
        with pytest.raises(todana.ClosedError):
            db.transaction()

    t = db.transaction()
    run_all(9, work)
    assert t.closed and db.closed


def test_callback_can_close_its_database(place):
    class File:
        def write(self, text):
            db.close()
            return len(text)

    for use in [
        lambda: db.dump(File()),
        lambda: db.map_reduce(lambda key, value: db.close(), lambda key, values: None),
    ]:
        db = todana.open(place)
        db["a"] = "1"
        use()
        assert db.closed
        db.close()
        with todana.open(place) as db:
            pass


def test_records_survive_close_and_open(durable):
    name, options = durable
    with todana.open(name, **options) as db:
        db.set("a", "1", flags=3)
    with todana.open(name, **options) as db:
        assert db["a"] == b"1" and db.get_record("a").flags == 3


KILLED = """
import os, signal, sys, todana
db = todana.open(sys.argv[1], data_dir=sys.argv[2] or None, sync=sys.argv[3] if sys.argv[3] == "always" else 3600)
for number in range(20):
    with db.transaction() as t:
        t["left"] = str(number)
        t["right"] = str(number)
        t["only %d" % number] = "x" * 1000
    if sys.argv[3] == "sync":
        db.sync()
    print(number, flush=True)
t = db.transaction()
t["left"] = "never"
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("sync", ["always", "sync", "unsynced"])
def test_committed_records_survive_a_kill(durable, sync):
    """A killed process once lost the commits since the last sync, which were only in memory."""
    name, options = durable
    child = python(KILLED, name, options.get("data_dir", ""), sync)
    printed, _ = child.communicate(timeout=120)
    assert child.returncode == -signal.SIGKILL
    assert printed.split() == [str(number) for number in range(20)]
    with todana.open(name, **options) as db:
        assert (db["left"], db["right"]) == (b"19", b"19")
        assert sorted(db.match_prefix("only ")) == sorted(b"only %d" % number for number in range(20))


def test_interpreter_exit_closes_open_databases(durable):
    """Checks that pending writes are written at the end even if close was not called."""
    name, options = durable
    program = """
import sys, todana
db = todana.open(sys.argv[1], data_dir=sys.argv[2] or None, sync=3600)
db.update({str(number): "x" for number in range(1000)})
open_transaction = db.transaction()
"""
    child = python(program, name, options.get("data_dir", ""))
    child.communicate(timeout=120)
    assert child.returncode == 0
    with todana.open(name, **options) as db:
        assert len(db) == 1000


def test_interpreter_exit_skips_calls_that_never_end(tmp_path):
    program = """
import sys, threading, todana

class File:
    def write(self, text):
        started.set()
        threading.Event().wait()

started = threading.Event()
stuck, other = todana.open(sys.argv[1]), todana.open(sys.argv[2], sync=3600)
stuck["a"] = "1"
threading.Thread(target=stuck.dump, args=(File(),), daemon=True).start()
started.wait()
other["b"] = "2"
"""
    names = [str(tmp_path / "stuck.hash"), str(tmp_path / "other.hash")]
    child = python(program, *names)
    child.communicate(timeout=120)
    assert child.returncode == 0
    for name, records in zip(names, [{b"a": b"1"}, {b"b": b"2"}]):
        with todana.open(name) as db:
            assert dict(db) == records


def test_forked_child_cannot_use_parents_database(durable, tmp_path):
    name, options = durable
    program = """
import os, sys, todana
db = todana.open(sys.argv[1], data_dir=sys.argv[2] or None)
db["a"] = "1"
iterator, snapshot, cursor = iter(db), db.snapshot(), db.cursor()
# The records that these objects have read belong to the parent, too.
db["b"] = "1"
begun = iter(db.items())
next(begun)
assert cursor.first()
del db["b"]
transaction = db.transaction()
child = os.fork()
if child == 0:
    for call in [lambda: db["a"], lambda: next(iterator), lambda: next(begun), lambda: cursor.key, lambda: snapshot["a"], lambda: transaction["a"], db.transaction]:
        try:
            call()
        except todana.ClosedError as error:
            assert "fork" in str(error), error
        else:
            os._exit(1)
    transaction.abort()
    snapshot.close()
    db.close()
    del iterator, begun, cursor, snapshot, transaction, db
    # The child owns the databases that it opens; they are closed when it ends.
    own = todana.open(sys.argv[3], sync=3600)
    own.update({str(number): "x" for number in range(1000)})
    sys.exit(0)
_, status = os.waitpid(child, 0)
assert status == 0, status
transaction["b"] = "2"
transaction.commit()
assert dict(db) == {b"a": b"1", b"b": b"2"}
db.close()
print("well")
"""
    own = str(tmp_path / "own.hash")
    child = python(program, name, options.get("data_dir", ""), own)
    printed, _ = child.communicate(timeout=120)
    assert (child.returncode, printed) == (0, "well\n")
    with todana.open(own) as db:
        assert len(db) == 1000
    with todana.open(name, **options) as db:
        assert dict(db) == {b"a": b"1", b"b": b"2"}


def test_sleeping_threads_of_a_parent_do_not_hinder_its_child(tmp_path):
    """Checks threads of a child of a process whose own threads sleep, at several addresses.

    A table of sleeping threads that a child inherits made about one child in three hang.
    """
    program = """
import os, sys, todana

def open_all(name, count):
    return [todana.open("mem:tree", data_dir=f"{sys.argv[1]}/{name}{n}") for n in range(count)]

opened = open_all("parent", 12)
child = os.fork()
if child == 0:
    of_child = open_all("child", 3)
    for number in range(200):
        for db in of_child:
            db[str(number)] = "x"
    for db in of_child:
        db.close()
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
"""
    for attempt in range(8):
        folder = tmp_path / str(attempt)
        folder.mkdir()
        parent = python(program, str(folder), start_new_session=True)
        try:
            parent.communicate(timeout=60)
        except subprocess.TimeoutExpired:
            os.killpg(parent.pid, signal.SIGKILL)
            raise
        assert parent.returncode == 0
        for number in range(3):
            with todana.open("mem:tree", data_dir=str(folder / f"child{number}")) as db:
                assert len(db) == 200


def test_waiting_writer_releases_the_interpreter(tmp_path):
    """Checks that a thread can run while another one waits for its transaction to end."""
    with todana.open("mem:hash") as db:
        t = db.transaction()
        thread = threading.Thread(target=lambda: db.set("a", "1"))
        thread.start()
        # If the waiting writer held the interpreter, this loop would never run, and only this
        # thread can end the transaction.
        for _ in range(1000):
            db.get("a")
        t.commit()
        thread.join(60)
        assert not thread.is_alive() and db["a"] == b"1"


@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
@pytest.mark.parametrize("has_open", [False, True])
def test_exit_of_multiprocessing_child_closes_databases(method, has_open, durable, tmp_path):
    """Checks children of multiprocessing, which skip the functions registered with atexit."""
    context = multiprocessing.get_context(method)
    name, options = durable
    # The child of a fork must not use its parent's databases.
    with todana.open(tmp_path / "parent.hash") if has_open else contextlib.nullcontext():
        process = context.Process(target=_fill, args=(name, options))
        process.start()
        process.join(120)
    assert process.exitcode == 0
    with todana.open(name, **options) as db:
        assert len(db) == 1001 and db["pid"] == b"%d" % process.pid
        assert db["last"] == b"999"


def _fill(name, options):
    global kept  # As a local variable, the database would be closed at the end of this function.
    kept = todana.open(name, sync=3600, **options)
    kept.update({str(number): "x" for number in range(999)}, pid=str(os.getpid()))
    # At its end, the process waits for this thread, which still writes.
    ending = threading.Event()
    multiprocessing.util.Finalize(None, ending.set, exitpriority=0)
    threading.Thread(target=_fill_last, args=(ending,)).start()


def _fill_last(ending):
    ending.wait(60)
    for number in range(1000):
        kept["last"] = str(number)
