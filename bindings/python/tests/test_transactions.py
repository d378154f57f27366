"""Tests that transactions apply all of their changes or none."""

import gc
import threading

import pytest

import todana


def test_changes_are_visible_after_the_commit(db):
    db.update(a="10", b="0")
    with db.transaction() as t:
        t.increment("a", -3)
        t.increment("b", 3)
        assert (t["a"], db["a"]) == (b"7", b"10")
        assert dict(t) == {b"a": b"7", b"b": b"3"} and len(t) == 2
        del t["b"]
        assert "b" not in t and "b" in db
        t["b"] = "3"
    assert t.closed
    assert dict(db) == {b"a": b"7", b"b": b"3"}


def test_exception_aborts_and_is_raised(db):
    db["a"] = "1"
    with pytest.raises(ZeroDivisionError):
        with db.transaction() as t:
            t["a"] = "2"
            t["b"] = "2"
            1 / 0
    assert dict(db) == {b"a": b"1"}
    # The aborted transaction does not block the next one.
    with db.transaction() as t:
        t["c"] = "3"
    assert db["c"] == b"3"


def test_transaction_can_end_within_its_block(db):
    with db.transaction() as t:
        t["a"] = "1"
        t.commit()
        assert db["a"] == b"1"
    with db.transaction() as t:
        t["a"] = "2"
        t.abort()
    assert db["a"] == b"1"
    with pytest.raises(todana.ClosedError):
        t["a"]
    with pytest.raises(todana.ClosedError):
        t.commit()
    t.abort()


def test_dropped_transaction_is_aborted(db):
    t = db.transaction()
    t["a"] = "1"
    iterator = iter(t)
    del t, iterator
    gc.collect()
    assert "a" not in db
    db["b"] = "1"


def test_other_writes_of_its_thread_are_refused(db):
    with db.transaction():
        for call in [lambda: db.__setitem__("a", "1"), db.transaction, db.snapshot]:
            with pytest.raises(todana.BusyError):
                call()
        assert "a" not in db


def test_other_thread_cannot_use_a_transaction(db):
    failures = []

    def run():
        for call in [lambda: t["a"], lambda: t.__setitem__("a", "1"), t.commit, lambda: list(t)]:
            try:
                call()
            except todana.InvalidError as error:
                failures.append(str(error))

    with db.transaction() as t:
        t["a"] = "1"
        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
    assert len(failures) == 4 and "thread" in failures[0]
    assert db["a"] == b"1"


def test_other_thread_can_abort_a_transaction(db):
    def begin():
        begun.append(db.transaction())
        begun[-1]["a"] = "1"

    def abort_in_block():
        with pytest.raises(ZeroDivisionError):
            with begun[-1]:
                1 / 0

    begun = []
    for abort in [lambda: begun[-1].abort(), abort_in_block]:
        thread = threading.Thread(target=begin)
        thread.start()
        thread.join()
        # The thread of the transaction has ended, and the transaction is still open.
        with pytest.raises(todana.InvalidError):
            begun[-1].commit()
        assert not begun[-1].closed
        abort()
        assert begun[-1].closed and "a" not in db
        db["b"] = "1"


def test_writers_wait_and_readers_do_not(db):
    db["a"] = "0"
    read, wrote = threading.Event(), threading.Event()

    def run():
        assert db["a"] == b"0"
        read.set()
        db.append("a", "2")
        wrote.set()

    thread = threading.Thread(target=run)
    with db.transaction() as t:
        t["a"] = "1"
        thread.start()
        # The other thread can read while this thread waits: neither the transaction nor the
        # interpreter blocks it.
        assert read.wait(60)
        assert not wrote.is_set()
    assert wrote.wait(60)
    thread.join()
    assert db["a"] == b"12"


def test_close_aborts_the_transaction(db):
    t = db.transaction()
    t["a"] = "1"
    db.close()
    assert t.closed
    with pytest.raises(todana.ClosedError):
        t.commit()


def close_elsewhere(db):
    thread = threading.Thread(target=db.close)
    thread.start()
    thread.join()


@pytest.mark.parametrize("close", [todana.DB.close, close_elsewhere])
def test_block_raises_if_its_database_was_closed(durable, close):
    name, options = durable
    db = todana.open(name, **options)
    with pytest.raises(todana.ClosedError):
        with db.transaction() as t:
            t["a"] = "1"
            close(db)
    with pytest.raises(todana.ClosedError):
        t.commit()
    # If the program ends the transaction before it closes the database, the block raises nothing.
    db = todana.open(name, **options)
    with db.transaction() as t:
        t["b"] = "2"
        t.commit()
        db.close()
    with todana.open(name, **options) as db:
        assert dict(db) == {b"b": b"2"}
        with db.transaction() as t:
            t["c"] = "3"
            t.abort()


def test_iterators_and_cursors_show_the_transaction(tree):
    tree.update(a="1", c="3")
    with tree.transaction() as t:
        t["b"] = "2"
        assert list(t.items("a", "c")) == [(b"a", b"1"), (b"b", b"2")]
        cursor = t.cursor()
        assert cursor.last() and cursor.step_back() and cursor.key == b"b"
        assert t.match_prefix("b") == [b"b"]
        t.clear()
        assert list(t) == [] and len(tree) == 2
    assert list(tree) == []
