"""Tests that programs with `import kyotocabinet` run unchanged, with the original's results."""

import pathlib
import subprocess
import sys
import threading

import pytest

import todana
from todana import kyotocabinet as kc

FOLDER = pathlib.Path(__file__).parent / "kyoto_program"


def run(*words, folder):
    return subprocess.run([sys.executable, *words], cwd=folder, capture_output=True, text=True, timeout=300)


def test_program_prints_the_output_of_the_original(tmp_path):
    done = run("-m", "todana.kyotocabinet", str(FOLDER / "program.py"), folder=tmp_path)
    assert done.returncode == 0, done.stderr
    expected = (FOLDER / "expected.txt").read_text().splitlines()
    assert done.stdout.splitlines() == expected


def test_module_replaces_kyotocabinet_only_on_request(tmp_path):
    (tmp_path / "asks.py").write_text("import kyotocabinet, sys\nprint(kyotocabinet.__name__, sys.argv)\n")
    assert "ModuleNotFoundError" in run("-c", "import todana.kyotocabinet, kyotocabinet", folder=tmp_path).stderr
    done = run("-m", "todana.kyotocabinet", "asks.py", "-x", "y", folder=tmp_path)
    assert done.stdout == "todana.kyotocabinet ['asks.py', '-x', 'y']\n"
    done = run("-m", "todana.kyotocabinet", "-m", "asks", "z", folder=tmp_path)
    assert "todana.kyotocabinet" in done.stdout and done.stdout.endswith("'z']\n")
    assert run("-m", "todana.kyotocabinet", folder=tmp_path).stderr.startswith("usage:")
    (tmp_path / "kyotocabinet.py").write_text("")
    program = "import kyotocabinet, todana.kyotocabinet\ntodana.kyotocabinet.install()"
    assert "already imported from" in run("-c", program, folder=tmp_path).stderr


def test_todana_opens_databases_of_the_module(tmp_path):
    place = str(tmp_path / "casket.kct")
    db = kc.DB()
    assert db.open(place + "#opts=c#bnum=1000000#zcomp=zlib#nosuchword=1")
    assert db.increment("n", 5) == 5
    assert db.path() == place and db.status()["type"] == "49"
    assert db.close()
    with todana.open(place) as same:
        assert same.increment_binary("n", 1) == 6
    assert db.open(place, kc.DB.OREADER) and db.increment("n") is None
    assert db.get("n") == (6).to_bytes(8, "big") and db.close()


def test_readers_share_a_database(tmp_path):
    for kind in ("kch", "kct"):
        place, one, other = str(tmp_path / ("casket." + kind)), kc.DB(), kc.DB()
        assert one.open(place) and one.set("a", "1") and one.close()
        assert one.open(place, kc.DB.OREADER) and other.open(place, kc.DB.OREADER)
        assert one.get("a") == other.get("a") == b"1"
        assert not kc.DB().open(place)
        assert one.close() and other.close()


def test_impossible_calls_set_the_last_error(tmp_path):
    db = kc.DB()
    original = tmp_path / "original.kch"
    original.write_bytes(b"KC\n\0" + bytes(100))
    assert not db.open(str(original))
    assert db.error() == kc.Error.BROKEN and "todana load" in db.error().message()
    assert original.read_bytes() == b"KC\n\0" + bytes(100)
    for name in ("casket.kch#zkey=secret", "casket.nosuch"):
        assert not db.open(str(tmp_path / name)) and db.error() == kc.Error.INVALID, name
    assert not db.set("a", "1") and db.error().message() == "not opened"
    empty = tmp_path / "empty.kch"
    empty.write_bytes(b"")
    assert not db.open(str(empty), kc.DB.OREADER) and empty.is_file()
    assert db.open(str(empty)) and db.set("a", "1") and db.close()
    # No other process may write an open database.
    assert db.open(str(empty))
    other = kc.DB()
    assert not other.open(str(empty)) and other.error() == kc.Error.LOGIC
    assert db.copy(str(tmp_path / "backup")) and not db.copy(str(tmp_path / "backup"))
    assert db.close() and other.open(str(tmp_path / "backup#type=kch"), kc.DB.OREADER) and other.get("a") == b"1"
    assert other.close()
    assert db.open("%")
    cursor = db.cursor()
    assert db.set("a", "1") and cursor.jump_back()
    hashed = kc.DB()
    assert hashed.open(":") and hashed.set("a", "1")
    assert not hashed.cursor().jump_back() and hashed.error() == kc.Error.NOIMPL
    db.increment("n", 2**63 - 1)
    # The sum does not fit. In the original, it would wrap around.
    assert db.increment("n", 2) is None and db.error() == kc.Error.LOGIC


def test_damaged_snapshot_changes_nothing(tmp_path):
    db, path = kc.DB(), tmp_path / "s.kcss"
    assert db.open("%") and db.set_bulk({"a": "1", "b": "2"}) == 2 and db.dump_snapshot(str(path))
    path.write_bytes(path.read_bytes()[:-2])
    assert db.clear() and not db.load_snapshot(str(path))
    assert db.error() == kc.Error.BROKEN and "byte 11" in db.error().message() and db.count() == 0


def test_aborted_bulk_visit_changes_nothing():
    db = kc.DB()
    db.open("%")
    db.set_bulk({"a": "1", "b": "2"})

    def visit(key, value):
        if key == b"b":
            raise ValueError("no")
        return kc.Visitor.REMOVE

    with pytest.raises(ValueError):
        db.accept_bulk(["a", "b"], visit)
    assert db.get_bulk(["a", "b"]) == {b"a": b"1", b"b": b"2"}


def test_transaction_belongs_to_its_thread():
    db, steps = kc.DB(), []
    db.open("%")
    db.set("a", "0")
    assert db.begin_transaction() and db.set("a", "1")

    def other():
        steps.append(db.get("a"))
        steps.append((db.end_transaction(), db.error().code()))
        steps.append(db.append("a", "2"))

    thread = threading.Thread(target=other)
    thread.start()
    assert db.set("a", "3") and db.end_transaction()
    thread.join()
    assert steps[1:] == [(False, kc.Error.INVALID), True] and db.get("a") == b"32"
    assert db.begin_transaction() and not db.begin_transaction() and db.error() == kc.Error.LOGIC
    assert db.end_transaction(False)


def test_cursor_survives_commit_but_not_abort():
    db = kc.DB()
    db.open("%")
    db.set_bulk({"a": "1", "b": "2", "c": "3"})
    cursor = db.cursor()
    assert cursor.jump("b") and db.begin_transaction()
    assert cursor.get() == (b"b", b"2") and cursor.remove()
    assert cursor.get_key() == b"c" and db.end_transaction()
    assert cursor.get_key() == b"c" and cursor.step_back() and cursor.get_key() == b"a"
    # As in the original, an abort, clear and close each remove the position of the cursor.
    assert db.begin_transaction() and db.end_transaction(False)
    assert cursor.get() is None and cursor.jump() and db.clear() and db.set("a", "1")
    assert cursor.get() is None and cursor.jump() and db.close()
    assert db.open("%") and db.set("a", "1")
    assert cursor.get() is None and cursor.jump() and cursor.get_key() == b"a"


def test_docstrings_of_the_module_run():
    import doctest

    assert doctest.testmod(kc).attempted > 0 and doctest.testmod(kc).failed == 0
    assert set(kc.__all__) <= set(dir(kc))


def test_program_can_end_without_close(tmp_path):
    program = "import kyotocabinet\ndb = kyotocabinet.DB()\ndb.open('x.kch')\ndb.set('a', '1')\n"
    (tmp_path / "program.py").write_text(program)
    assert run("-m", "todana.kyotocabinet", "program.py", folder=tmp_path).returncode == 0
    with todana.open(tmp_path / "x.kch") as db:
        assert db["a"] == b"1"
