"""Tests that the stubs list all functions with the right types."""

import subprocess
import sys

import pytest

pytest.importorskip("mypy")

PROGRAM = """
from typing_extensions import assert_type
import todana

db = todana.open("mem:tree")
assert_type(db["a"], bytes)
text = todana.open("mem:tree", text=True)
assert_type(text.get("a"), str | None)
assert_type(text.get("a", 7), str | int)
assert_type(list(db.items("a", "c")), list[tuple[bytes, bytes]])
assert_type(db.get_many(["a"]), dict[str, bytes])
with db.transaction() as t:
    t.update({"a": "1"}, b=b"2")
    assert_type(t.pop("a", None), bytes | None)
with text.snapshot() as s:
    for key in s:
        assert_type(key, str)
assert_type(db.map_reduce(lambda key, value: [(key, value)], lambda key, values: len(values)), dict[bytes, int])
db[1] = "x"
"""


def run(*words, folder):
    return subprocess.run([sys.executable, "-m", *words], cwd=folder, capture_output=True, text=True)


def test_stubs_match_the_module(tmp_path):
    allowed = tmp_path / "allowed"
    # The stubs describe only the package `todana`, which exports the names of these modules.
    allowed.write_text("todana\\._todana\ntodana\\._errors\ntodana\\._processes\ntodana\\.kyotocabinet.*\n")
    done = run("mypy.stubtest", "todana", "--allowlist", str(allowed), "--ignore-unused-allowlist", folder=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


def test_type_checker_infers_results(tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM)
    done = run("mypy", "--strict", "--cache-dir", str(tmp_path / "cache"), "program.py", folder=tmp_path)
    errors = [line for line in done.stdout.splitlines() if "error:" in line]
    assert len(errors) == 1 and errors[0].startswith("program.py:19:"), done.stdout + done.stderr
