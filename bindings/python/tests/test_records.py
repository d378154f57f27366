"""Tests operations on records beyond those of a dict."""

import datetime
import io
import os
import time

import pytest

import todana


def test_attributes_are_stored_with_a_value(db):
    now = int(time.time())
    db.set("a", "1", ttl=1000, flags=7)
    record = db.get_record("a")
    assert (record.value, record.flags, record.sliding) == (b"1", 7, None)
    assert now + 999 <= record.expires <= now + 1010
    db.set("b", "2", sliding=datetime.timedelta(minutes=15))
    assert db.get_record("b").sliding == 900
    db.set("c", "3", expires=datetime.datetime.fromtimestamp(now + 5000))
    assert db.get_record("c").expires == now + 5000
    db.set("d", "4", expires=now + 6000.5)
    assert db.get_record("d").expires == now + 6001
    db["a"] = "plain"
    record = db.get_record("a")
    assert (record.flags, record.expires) == (0, None)
    assert "plain" in repr(record)
    assert db.get_record("x") is None


def test_expired_record_is_missing(db):
    db.set("a", "1", ttl=0)
    db.set("b", "1", ttl=-5)
    db.set("c", "1", expires=1000)
    assert [key in db for key in "abc"] == [False, False, False]
    db["d"] = "1"
    assert db.touch("d", ttl=0)
    assert "d" not in db and not db.touch("d", ttl=5)


def test_only_one_kind_of_expiry_is_accepted(db):
    for wrong in [{"ttl": 1, "sliding": 2}, {"sliding": 0}, {"ttl": float("nan")}]:
        with pytest.raises(ValueError):
            db.set("a", "1", **wrong)
    with pytest.raises(TypeError):
        db.set("a", "1", ttl="soon")
    # Infinite times become the longest possible time to live.
    db.set("a", "1", ttl=float("inf"))
    db.set("b", "1", expires=1e300)
    assert db["a"] == db["b"] == b"1"


def test_add_and_replace_check_for_the_record(db):
    assert db.add("a", "1", flags=3) and not db.add("a", "2")
    assert db.replace("a", "3") and not db.replace("b", "1")
    assert db["a"] == b"3" and "b" not in db


def test_append_and_prepend_create_missing_records(db):
    db.append("a", "b")
    db.append("a", "c")
    db.prepend("a", "a")
    assert db["a"] == b"abc"


def test_increment_counts(db):
    assert db.increment("visits", initial=1) == 1
    assert db.increment("visits") == 2
    assert db.increment("visits", -10) == -8
    assert db["visits"] == b"-8"
    with pytest.raises(KeyError) as caught:
        db.increment("none")
    assert caught.value.args == ("none",)
    db["word"] = "x"
    with pytest.raises(todana.InvalidError):
        db.increment("word")
    with pytest.raises(OverflowError):
        db.increment("visits", 1 << 64)


def test_compare_and_set_detects_a_change(db):
    db["stock"] = "3"
    seen = db.get_record("stock")
    assert db.compare_and_set("stock", "2", seen.version)
    assert not db.compare_and_set("stock", "1", seen.version)
    assert not db.compare_and_set("none", "1", seen.version)
    assert db["stock"] == b"2"


def test_compare_and_swap_creates_and_removes(db):
    assert db.compare_and_swap("lock", None, "mine")
    assert not db.compare_and_swap("lock", None, "theirs")
    assert not db.compare_and_swap("lock", "theirs", None)
    assert db.compare_and_swap("lock", "mine", None)
    assert "lock" not in db


def test_change_value_retries_after_a_concurrent_change(db):
    db["a"] = "1"
    seen = []

    def change(old):
        seen.append(old)
        if len(seen) == 1:
            db["a"] = "2"
        return old + b"0"

    assert db.change_value("a", change) == b"20"
    assert seen == [b"1", b"2"] and db["a"] == b"20"
    assert db.change_value("b", lambda old: "new" if old is None else None) == "new"
    assert db.change_value("b", lambda old: None) is None
    assert "b" not in db
    with pytest.raises(ZeroDivisionError):
        db.change_value("a", lambda old: 1 / 0)
    assert db["a"] == b"20"


def test_seize_removes_and_returns_a_record(db):
    db["job"] = "sweep"
    assert db.seize("job") == b"sweep"
    assert db.seize("job") is None


def test_several_records_in_one_call(db):
    db.set_many({"a": "1", b"b": b"2"}, flags=5)
    db.set_many([("c", "3")])
    assert db.get_many(["a", b"b", "x"]) == {"a": b"1", b"b": b"2"}
    assert db.get_record("b").flags == 5
    assert db.delete_many(["a", "x", "c"]) == 2
    assert list(db) == [b"b"]
    with pytest.raises(TypeError):
        db.get_many([1])
    with pytest.raises(TypeError):
        db.set_many([("a", 1)])
    assert list(db) == [b"b"]


def test_damaged_record_raises_corrupt_error(tmp_path):
    place = tmp_path / "disk.hash"
    with todana.open(place) as db:
        db.update(crane="one whose bytes will change", heron="whole")
    (spoiled,) = [path for path in place.glob("*.segment") if b"one whose bytes" in path.read_bytes()]
    spoiled.write_bytes(spoiled.read_bytes().replace(b"one whose", b"One whose"))
    with todana.open(place) as db:
        with pytest.raises(todana.CorruptError, match='record "crane"'):
            db.get_many(["heron", "crane"])
        errors = {}
        assert db.get_many(["crane", "heron", "egret"], errors=errors) == {"heron": b"whole"}
        assert list(errors) == ["crane"] and isinstance(errors["crane"], todana.CorruptError)
        with pytest.raises(todana.CorruptError):
            db.get("crane", "no such record")


def test_matches(db):
    db.update({"user:1": "", "user:22": "", "vat": ""})
    assert sorted(db.match_prefix("user:")) == [b"user:1", b"user:22"]
    assert len(db.match_prefix("user:", 1)) == 1
    assert db.match_regex(r"^user:\d$") == [b"user:1"]
    with pytest.raises(todana.InvalidError):
        db.match_regex("(")
    assert db.match_similar("vet", 1) == [(b"vat", 1)]
    db["größe"] = ""
    assert db.match_similar("grüße", 1) == [("größe".encode(), 1)]
    assert db.match_similar("größe", 4, 1, by_bytes=True) == [("größe".encode(), 0)]


def test_ranges_are_read_in_both_directions(tree):
    tree.update({str(number): str(number * number) for number in range(10)})
    assert list(tree) == [b"%d" % number for number in range(10)]
    assert list(reversed(tree)) == [b"%d" % number for number in reversed(range(10))]
    assert list(tree.keys("3", "6")) == [b"3", b"4", b"5"]
    assert list(tree.values("8")) == [b"64", b"81"]
    assert list(tree.items(stop="2", reverse=True)) == [(b"1", b"1"), (b"0", b"0")]
    assert list(reversed(tree.keys(prefix="7"))) == [b"7"]
    assert list(tree.keys("6", "3")) == []
    assert len(tree.keys("3", "6")) == 3 and "5" in tree.keys("3", "6") and "6" not in tree.keys("3", "6")
    with pytest.raises(todana.InvalidError):
        tree.keys("3", prefix="3")


def test_unordered_database_refuses_ranges():
    with todana.open("mem:hash") as db:
        db.update(ab="1", b="2")
        for call in [lambda: db.keys("a"), lambda: reversed(db), lambda: db.items(reverse=True), lambda: db.cursor().last()]:
            with pytest.raises(todana.InvalidError):
                call()
        assert list(db.keys(prefix="a")) == [b"ab"]


def test_iterators_survive_writes(db):
    keys = {b"%05d" % number for number in range(5000)}
    db.update({key: key for key in keys})
    for key, value in db.items():
        db[key] = value + b"!"
        db["new" + key.decode()] = "x"
        if len(db) > 9000:
            break
    assert db["00000"][:6] == b"00000!" or db["04999"][:5] == b"04999"
    seen = set()
    for key in db:
        seen.add(key)
        del db[key]
    assert keys <= seen
    assert list(db) == []
    assert next(iter(db), None) is None


def test_exhausted_iterator_stays_exhausted(db):
    db["a"] = "1"
    iterator = iter(db.items())
    assert next(iterator) == (b"a", b"1")
    for _ in range(3):
        with pytest.raises(StopIteration):
            next(iterator)


def test_cursor_keeps_its_position(tree):
    tree.update(ant="6", bee="6", crab="10")
    cursor = tree.cursor()
    assert cursor.key is None and not cursor.step()
    assert cursor.jump("b") and cursor.key == b"bee"
    del tree["bee"]
    assert cursor.value is None and not cursor.remove()
    assert cursor.step() and (cursor.key, cursor.value) == (b"crab", b"10")
    assert cursor.set_value("8") and tree["crab"] == b"8"
    assert cursor.step_back() and cursor.key == b"ant"
    assert cursor.get_record().value == b"6"
    assert cursor.last() and cursor.seize() == b"8"
    assert cursor.first() and cursor.jump_back("b") and cursor.key == b"ant"
    assert not cursor.jump("z") and cursor.key is None


def test_cursor_visits_all_unordered_records():
    with todana.open("mem:hash") as db:
        db.update({str(number): "" for number in range(100)})
        cursor, seen = db.cursor(), set()
        more = cursor.first()
        while more:
            seen.add(cursor.key)
            more = cursor.step()
        assert seen == {b"%d" % number for number in range(100)}


def test_snapshot_does_not_change(db):
    db.update(a="1", b="2")
    with db.snapshot() as snapshot:
        db["a"] = "10"
        del db["b"]
        db["c"] = "30"
        assert dict(snapshot) == {b"a": b"1", b"b": b"2"} and len(snapshot) == 2
        assert snapshot["b"] == b"2" and "c" not in snapshot
        with pytest.raises(todana.InvalidError):
            snapshot["a"] = "x"
    assert snapshot.closed
    with pytest.raises(todana.ClosedError):
        snapshot["a"]
    assert dict(db) == {b"a": b"10", b"c": b"30"}


def test_merge_and_copy(db, tree, tmp_path):
    db.update(a="1", log="one ")
    tree.update(a="2", b="2", log="two")
    assert db.merge(tree, mode="append") == 3
    assert dict(db) == {b"a": b"12", b"b": b"2", b"log": b"one two"}
    assert db.merge(tree, mode="add") == 0
    with pytest.raises(todana.InvalidError):
        db.merge(db)
    with pytest.raises(ValueError):
        db.merge(tree, mode="mix")
    with pytest.raises(TypeError):
        db.merge({"a": "1"})
    place = tmp_path / "copy.tree"
    assert db.copy(place) == 3
    with todana.open(place) as copy:
        assert dict(copy) == dict(db)
    with pytest.raises(todana.InvalidError):
        db.copy(place)


def test_dump_and_load(db, tmp_path):
    db.set("greeting", "hello\tworld", flags=7)
    path = tmp_path / "dump.tsv"
    assert db.dump(path) == 1
    assert path.read_bytes() == b"greeting\thello\\tworld\t7\n"
    text = io.BytesIO()
    assert db.dump(text) == 1
    assert text.getvalue() == path.read_bytes()
    with todana.open("mem:hash") as other:
        assert other.load(path) == 1
        assert other.get_record("greeting").flags == 7
    with todana.open("mem:hash") as other:
        text.seek(0)
        assert other.load(text) == 1
        assert other["greeting"] == b"hello\tworld"
        with pytest.raises(todana.InvalidError):
            other.load(io.BytesIO(b"no tab"))
        # Exceptions of a file object and of opening a file are re-raised unchanged.
        with pytest.raises(io.UnsupportedOperation):
            with path.open("rb") as file:
                other.dump(file)
        with pytest.raises(FileNotFoundError):
            other.load(tmp_path / "none")
        with pytest.raises(TypeError):
            other.load(io.StringIO("a\tb\n"))


def test_nonblocking_file_raises_blocking_io_error(db):
    # These are more bytes than a pipe can hold.
    db.update({str(number): "x" * 1000 for number in range(1000)})
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    os.set_blocking(writer, False)
    with open(reader, "rb", buffering=0) as reader, open(writer, "wb", buffering=0) as writer:
        with pytest.raises(BlockingIOError):
            db.load(reader)
        with pytest.raises(BlockingIOError):
            db.dump(writer)


def test_file_that_returns_too_much_is_refused(db):
    class File:
        def read(self, size):
            return b"a\tb\n" * size

    with pytest.raises(ValueError, match="bytes"):
        db.load(File())


def test_write_of_a_file_may_return_none(db):
    class File(list):
        def write(self, text):
            self.append(text)

    db["a"] = "b"
    file = File()
    assert db.dump(file) == 1 and b"".join(file).startswith(b"a\tb")


def test_map_reduce_counts_words(db):
    db.update({"1": "the cat and the dog", "2": "the end"})

    def words(key, value):
        for word in value.split():
            yield word, "1"

    counts = db.map_reduce(words, lambda word, ones: len(ones))
    assert counts == {b"and": 1, b"cat": 1, b"dog": 1, b"end": 1, b"the": 3}
    sums = db.map_reduce(
        words,
        lambda word, sums: sum(map(int, sums)),
        combine=lambda word, sums: str(sum(map(int, sums))),
        memory_max=64 << 10,
    )
    assert sums == counts
    assert list(sums) == sorted(sums)
    for functions in [(lambda key, value: 1 / 0, len), (words, lambda word, ones: 1 / 0)]:
        with pytest.raises(ZeroDivisionError):
            db.map_reduce(*functions)
    with pytest.raises(ZeroDivisionError):
        db.map_reduce(words, len, combine=lambda word, ones: 1 / 0)
    with pytest.raises(TypeError):
        db.map_reduce(lambda key, value: [("a", 1)], len)


def test_stored_keys_implement_other_orders():
    keys = [b"10", b"9", b"-1.5", b"01", b"1", b""]
    orders = {"dec": 1, "decdesc": -1}
    with todana.open("mem:tree") as db:
        for order, step in orders.items():
            db.clear()
            for key in keys:
                db[todana.stored_key(key, order)] = "x"
            found = [todana.original_key(stored, order) for stored in db]
            assert found == [b"-1.5", b"", b"01", b"1", b"9", b"10"][::step]
    assert todana.original_key(todana.stored_key("key", sort_key="sort")) == b"key"
    assert todana.stored_key("ab", "lexdesc") < todana.stored_key("a", "lexdesc")
    with pytest.raises(todana.InvalidError):
        todana.original_key("key", "dec")
    for wrong in [{}, {"order": "dec", "sort_key": "x"}, {"order": "dex"}]:
        with pytest.raises(ValueError):
            todana.stored_key("key", **wrong)
