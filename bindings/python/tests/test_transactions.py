"""Transactions apply all of their changes or none."""

import gc
import threading

import pytest

import todana


def test_a_transaction_is_seen_when_it_is_committed(db):
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


def test_an_exception_undoes_it_and_comes_out(db):
    db["a"] = "1"
    with pytest.raises(ZeroDivisionError):
        with db.transaction() as t:
            t["a"] = "2"
            t["b"] = "2"
            1 / 0
    assert dict(db) == {b"a": b"1"}
    # Other threads can begin a transaction again.
    with db.transaction() as t:
        t["c"] = "3"
    assert db["c"] == b"3"


def test_it_may_be_ended_within_the_block(db):
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


def test_one_that_is_dropped_is_aborted(db):
    t = db.transaction()
    t["a"] = "1"
    iterator = iter(t)
    del t, iterator
    gc.collect()
    assert "a" not in db
    db["b"] = "1"


def test_the_thread_that_has_one_is_told_so(db):
    with db.transaction():
        for call in [lambda: db.__setitem__("a", "1"), db.transaction, db.snapshot]:
            with pytest.raises(todana.BusyError):
                call()
        assert "a" not in db


def test_another_thread_may_not_use_it(db):
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


def test_another_thread_may_abort_it(db):
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
        # The thread of the transaction has ended.
        thread.join()
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
        # The reader gets through while this thread waits for it: neither the transaction nor the
        # interpreter is in its way.
        assert read.wait(60)
        assert not wrote.is_set()
    assert wrote.wait(60)
    thread.join()
    assert db["a"] == b"12"


def test_a_closed_database_aborts_it(db):
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
def test_a_block_whose_database_was_closed_does_not_end_as_if_committed(durable, close):
    name, options = durable
    db = todana.open(name, **options)
    with pytest.raises(todana.ClosedError):
        with db.transaction() as t:
            t["a"] = "1"
            close(db)
    with pytest.raises(todana.ClosedError):
        t.commit()
    # A transaction that the user has ended stays ended.
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


def test_iterators_and_cursors_go_through_it(tree):
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
