"""Tests features of Kyoto Cabinet's library beyond a dict: numbers, visitors and snapshots."""

import io
import pickle

import pytest

import todana

SET, TRY = 2**63 - 1, -(2**63)

# A snapshot that was written by Kyoto Cabinet 1.2.76.
CAPTURED = b"KCSS\n\0\0\0\x02\x00\xff\0\x05\x05japantokyo\0\x01\x08n\0\0\0\0\0\0\0\x05\xff"


def test_numbers_have_kyoto_cabinets_format(db):
    assert db.increment_binary("n", 5) == 5
    assert db.increment_binary("n", -7, 100) == -2
    assert db["n"] == b"\xff\xff\xff\xff\xff\xff\xff\xfe"
    assert db.increment_binary("n", 9, SET) == 9
    assert db.increment_binary("n", 1, TRY) == 10 == db.increment_binary("n", 0, None)
    assert db.increment_double("d", 1.5) == 1.5
    assert db.increment_double("d", -3.25) == -1.75
    assert db["d"] == bytes.fromhex("fffffffffffffffe0000e35fa931a000")
    assert db.increment_double("d", 2.5, float("inf")) == 2.5
    for origin in (TRY, None):
        with pytest.raises(KeyError):
            db.increment_binary("none", 1, origin)
    with pytest.raises(KeyError):
        db.increment_double("none", 1, float("-inf"))
    db["text"] = "seven"
    for add in (db.increment_binary, db.increment_double):
        with pytest.raises(todana.InvalidError, match='record "text": not a number'):
            add("text", 1)
    db.increment_binary("great", SET)
    with pytest.raises(todana.InvalidError, match="does not fit"):
        db.increment_binary("great", 1)
    assert "none" not in db and db["text"] == b"seven"


def test_visitor_keeps_replaces_removes_and_creates_records(db):
    db.set("a", "1", flags=7, ttl=1000)
    seen = []

    def visitor(answer):
        def visit(key, value):
            seen.append((key, value))
            return answer

        return visit

    assert not db.visit("a", visitor(None))
    assert not db.visit("none", visitor(None))
    assert not db.visit("none", visitor(todana.REMOVE))
    assert db.visit("a", visitor("2")) and db.visit("new", visitor(b""))
    assert seen == [(b"a", b"1"), (b"none", None), (b"none", None), (b"a", b"1"), (b"new", None)]
    record = db.get_record("a")
    assert (record.value, record.flags, record.expires is None) == (b"2", 7, False)
    assert db.visit("a", visitor(todana.REMOVE)) and dict(db) == {b"new": b""}
    with pytest.raises(TypeError):
        db.visit("new", visitor(7))
    assert db["new"] == b""


def test_exception_of_visitor_aborts_the_call(db):
    db.update(a="1", b="2", c="3")
    before = dict(db)

    def fails_at_b(key, value):
        if key == b"b":
            raise RuntimeError("no")
        return todana.REMOVE

    with pytest.raises(RuntimeError):
        db.visit("b", fails_at_b)
    with pytest.raises(RuntimeError):
        db.visit_many(["a", "c", "b", "none"], fails_at_b)
    assert dict(db) == before
    with pytest.raises(RuntimeError):
        with db.transaction() as t:
            t.visit_each(fails_at_b)
    assert dict(db) == before
    # Outside of a transaction, each record is changed separately, so earlier changes stay.
    with pytest.raises(RuntimeError):
        db.visit_each(fails_at_b)
    assert db["b"] == b"2"


def test_visit_many_is_atomic_and_sees_own_changes(db):
    db.update(a="1", b="2")

    def visit(key, value):
        # Other calls see no changes before visit_many has returned.
        assert db.get("c") is None
        return (value or b"") + b"!"

    assert db.visit_many(["a", "c", "a"], visit) == 3
    assert dict(db) == {b"a": b"1!!", b"b": b"2", b"c": b"!"}
    with db.transaction() as t:
        assert t.visit_many(["a", "b"], lambda key, value: todana.REMOVE) == 2
        assert db["a"] == b"1!!"
    assert dict(db) == {b"c": b"!"}
    assert db.visit_many([], visit) == 0


def test_visit_each_visits_all_records(db):
    db.update((f"{n:04}", str(n)) for n in range(3000))
    seen = {}

    def visit(key, value):
        seen[key] = value
        return {0: None, 1: todana.REMOVE, 2: value * 2}[int(value) % 3]

    assert db.visit_each(visit) == 2000
    assert len(seen) == 3000 and seen[b"0017"] == b"17"
    assert len(db) == 2000 and db["0002"] == b"22" and "0001" not in db and db["0003"] == b"3"
    with db.snapshot() as then:
        assert then.visit_each(lambda key, value: None) == 0
        with pytest.raises(todana.InvalidError):
            then.visit("0003", lambda key, value: todana.REMOVE)


def test_visitor_is_called_again_after_a_concurrent_change(db):
    db["a"] = "1"
    calls = []

    def visit(key, value):
        if not calls:
            db["a"] = "2"
        calls.append(value)
        return value + b"0"

    assert db.visit("a", visit) and db["a"] == b"20"
    assert calls == [b"1", b"2"]


def test_remove_is_a_singleton():
    assert repr(todana.REMOVE) == "todana.REMOVE"
    assert pickle.loads(pickle.dumps(todana.REMOVE)) is todana.REMOVE


def test_snapshots_have_kyoto_cabinets_format(db, tmp_path):
    path = tmp_path / "s.kcss"
    path.write_bytes(CAPTURED)
    db["japan"] = "kyoto"
    assert db.load_snapshot(path) == 3
    assert (db["japan"], db[""], db.increment_binary("n", 1)) == (b"tokyo", b"\0\xff", 6)
    db.increment_binary("n", -1)
    assert db.dump_snapshot(path) == 3
    stream = io.BytesIO()
    assert db.dump_snapshot(stream) == 3
    assert sorted(path.read_bytes()) == sorted(CAPTURED) == sorted(stream.getvalue())
    with todana.open("mem:tree") as tree:
        assert tree.load_snapshot(io.BytesIO(stream.getvalue())) == 3
        tree.dump_snapshot(str(path))
    assert path.read_bytes() == CAPTURED


def test_timed_snapshots_have_kyoto_tycoons_format(tree):
    tree.set("a", "v", expires=4_000_000_001)
    stream = io.BytesIO()
    assert tree.dump_snapshot(stream, timed=True) == 1
    assert stream.getvalue() == b"KCSS\n\0\0\x01\x06a\x00\xee\x6b\x28\x00v\xff"
    tree.clear()
    stream.seek(0)
    assert tree.load_snapshot(stream, timed=True) == 1
    assert tree.get_record("a").expires == 4_000_000_001


def test_damaged_snapshot_is_refused(db, tmp_path):
    path = tmp_path / "s.kcss"
    path.write_bytes(CAPTURED[:-3])
    with pytest.raises(todana.CorruptError, match="byte 24"):
        db.load_snapshot(path)
    assert len(db) == 0
    with pytest.raises(todana.CorruptError, match="byte 24"):
        db.load_snapshot(io.BytesIO(CAPTURED[:-3]))
    assert len(db) == 2
    with pytest.raises(todana.UnavailableError):
        db.load_snapshot(tmp_path / "none")
    with pytest.raises(todana.UnavailableError):
        db.dump_snapshot(tmp_path / "none" / "s.kcss")


def test_exception_of_a_file_is_raised(db):
    class Torn(io.RawIOBase):
        def write(self, data):
            raise RuntimeError("torn")

        def read(self, size=-1):
            raise RuntimeError("torn")

    db["a"] = "1"
    with pytest.raises(RuntimeError, match="torn"):
        db.dump_snapshot(Torn())
    with pytest.raises(RuntimeError, match="torn"):
        db.load_snapshot(Torn())
