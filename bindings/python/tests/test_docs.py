"""The programs of the guide run."""

import pathlib
import re

import pytest

import todana

GUIDE = pathlib.Path(__file__).parents[3] / "docs" / "python.md"
PROGRAMS = re.findall(r"^```python\n(.*?)^```$", GUIDE.read_text(), re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_program_of_the_guide_runs(program, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    exec(compile(program, str(GUIDE), "exec"), {"__name__": "guide"})


def test_the_guide_has_programs():
    assert len(PROGRAMS) == 4


def test_the_package_says_how_it_is_used():
    import doctest

    assert doctest.testmod(todana).attempted > 0
    assert doctest.testmod(todana).failed == 0
