"""Tests that a database is a dict of bytes."""

import collections.abc

import pytest

import todana


def test_keys_and_values_are_returned_as_bytes(db):
    pairs = [("a", "1"), (b"b", b"2"), (bytearray(b"c"), bytearray(b"3")), (memoryview(b"d"), memoryview(b"4"))]
    for key, value in pairs:
        db[key] = value
    assert dict(db) == {b"a": b"1", b"b": b"2", b"c": b"3", b"d": b"4"}
    assert db["a"] == db[b"a"] == db[memoryview(b"a")] == b"1"


def test_str_is_encoded_as_utf_8(db):
    db["戸棚"] = "ä"
    assert db["戸棚".encode()] == b"\xc3\xa4"
    with pytest.raises(UnicodeEncodeError):
        db["\ud800"] = "x"


def test_any_bytes_are_valid_keys_and_values(db):
    db[b""] = b""
    db[b"\0\xff"] = b"\0" * 1000
    assert db[b""] == b""
    assert db[b"\0\xff"] == b"\0" * 1000
    assert len(db) == 2


def test_long_value_is_returned(db):
    value = bytes(range(256)) * 20_000
    db["long"] = value
    assert db["long"] == value
    assert db.get("long") == value
    assert list(db.values()) == [value]


def test_missing_key_raises_key_error(db):
    for miss in [lambda: db["x"], lambda: db.__delitem__("x"), lambda: db.pop("x")]:
        with pytest.raises(KeyError) as caught:
            miss()
        assert caught.value.args == ("x",)


def test_other_types_raise_type_error(db):
    for wrong in [1, None, 1.5, [1], object()]:
        with pytest.raises(TypeError):
            db[wrong] = "x"
        with pytest.raises(TypeError):
            db["x"] = wrong
        with pytest.raises(TypeError):
            db.get(wrong)
    assert len(db) == 0


def test_methods_of_dict_are_supported(db):
    assert db.get("a") is None
    assert db.get("a", 7) == 7
    assert db.setdefault("a", "1") == b"1"
    assert db.setdefault("a", "2") == b"1"
    assert "a" in db and b"a" in db and "b" not in db
    db.update({"b": "2"}, c="3")
    db.update([("d", "4")])
    db.update(e=b"5")
    assert len(db) == 5
    assert db.pop("b") == b"2"
    assert db.pop("b", None) is None
    assert db.pop("b", "x") == "x"
    with pytest.raises(TypeError):
        db.pop("b", 1, 2)
    del db["c"]
    assert sorted(db) == [b"a", b"d", b"e"]
    key, value = db.popitem()
    assert (key, value) in [(b"a", b"1"), (b"d", b"4"), (b"e", b"5")]
    assert key not in db and len(db) == 2
    db.clear()
    assert len(db) == 0 and list(db) == [] and not db
    with pytest.raises(KeyError):
        db.popitem()


def test_update_accepts_another_database(db, tree):
    tree.update(a="1", b="2")
    db.update(tree)
    assert dict(db) == {b"a": b"1", b"b": b"2"}


def test_database_is_a_mutable_mapping(db):
    assert isinstance(db, collections.abc.MutableMapping)
    assert isinstance(db.keys(), collections.abc.Collection)
    assert isinstance(iter(db), collections.abc.Iterator)


def test_views_show_current_records(db):
    db.update(a="1", b="2")
    assert "a" in db.keys() and "c" not in db.keys()
    assert ("a", "1") in db.items() and ("a", "2") not in db.items() and ("c", "1") not in db.items()
    assert "2" in db.values() and "3" not in db.values()
    assert len(db.keys()) == len(db.values()) == len(db.items()) == 2
    assert sorted(db.items()) == [(b"a", b"1"), (b"b", b"2")]
    assert sorted(db.values()) == [b"1", b"2"]
    # A view shows the current records each time it is iterated.
    view = db.keys()
    db["c"] = "3"
    assert sorted(view) == sorted(view) == [b"a", b"b", b"c"]


def test_text_option_returns_str(place):
    with todana.open(place, text=True) as db:
        db["grün"] = "ja"
        db[b"b"] = b"\xff"
        assert db["grün"] == "ja"
        assert sorted(db) == ["b", "grün"]
        with pytest.raises(UnicodeDecodeError):
            db["b"]
        assert db.get_many(["grün"]) == {"grün": "ja"}
        assert db.match_prefix("g") == ["grün"]
        assert db.get_record("grün").value == "ja"
        assert db.seize("grün") == "ja"


def test_calls_after_close_raise_closed_error(place):
    db = todana.open(place)
    db["a"] = "1"
    view, iterator, cursor, snapshot = db.keys(), iter(db), db.cursor(), db.snapshot()
    assert not db.closed
    db.close()
    db.close()
    assert db.closed and "closed" in repr(db)
    for call in [
        lambda: db["a"],
        lambda: db.__setitem__("a", "1"),
        lambda: "a" in db,
        lambda: len(db),
        lambda: list(db),
        lambda: next(iterator),
        lambda: list(view),
        cursor.first,
        db.transaction,
        db.snapshot,
        db.sync,
        db.status,
        db.clear,
        lambda: snapshot["a"],
        lambda: db.get_many(["a"]),
    ]:
        with pytest.raises(todana.ClosedError) as caught:
            call()
        assert isinstance(caught.value, ValueError) and isinstance(caught.value, todana.Error)


def test_errors_have_a_class_per_remedy(tmp_path):
    with pytest.raises(todana.InvalidError) as caught:
        todana.open("carts.txt")
    assert "carts.txt" in str(caught.value) and isinstance(caught.value, ValueError)
    name = str(tmp_path / "a.hash")
    with todana.open(name):
        with pytest.raises(todana.BusyError):
            todana.open(name)
    with todana.open(name) as db:
        db["a"] = "1"
    with todana.open(name, read_only=True) as db:
        assert db["a"] == b"1"
        with pytest.raises(todana.InvalidError):
            db["a"] = "2"
        with pytest.raises(todana.InvalidError):
            db.transaction()
        with todana.open(name, read_only=True) as other:
            assert other["a"] == b"1"
            with pytest.raises(todana.BusyError):
                todana.open(name)
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(todana.UnavailableError) as caught:
        todana.open(str(tmp_path / "file" / "b.hash"))
    assert isinstance(caught.value, OSError)
    assert issubclass(todana.CorruptError, todana.Error) and todana.Error.__module__ == "todana"
    with pytest.raises(ValueError):
        todana.open("mem:hash", when_full="shrug")
    with pytest.raises(ValueError):
        todana.open("mem:hash", sync=0)
    with pytest.raises(TypeError):
        todana.open("mem:hash", no_such_option=1)


def test_memory_max_bounds_the_records():
    value = b"x" * 1000
    with todana.open("mem:hash", memory_max=8 << 20) as db:
        for number in range(20_000):
            db[str(number)] = value
        assert 1000 < len(db) < 9000
        assert db.status()["evictions"] > 10_000
        assert db["19999"] == value
    with todana.open("mem:hash", memory_max=8 << 20, when_full="refuse") as db:
        with pytest.raises(todana.FullError):
            for number in range(20_000):
                db[str(number)] = value
        assert db["0"] == value


def test_status_counts_records(db):
    db.update(a="1", b="2")
    status = db.status()
    assert status["records"] == 2
    assert status["name"] == db.name
    assert status["kind"] in ("mem:hash", "mem:tree", "disk:hash", "disk:tree")
    assert db.name in repr(db)


def test_subclass_can_add_methods():
    class Carts(todana.DB):
        def total(self, user):
            return int(self[user])

    with Carts("mem:hash") as carts:
        carts["ada"] = "7"
        assert carts.total("ada") == 7
