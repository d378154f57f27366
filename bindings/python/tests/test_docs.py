"""Runs the programs of the guide and of the README."""

import pathlib
import re

import pytest

import todana

ROOT = pathlib.Path(__file__).parents[3]


def programs(page):
    return re.findall(r"^```python\n(.*?)^```$", (ROOT / page).read_text(), re.DOTALL | re.MULTILINE)


PROGRAMS = programs("docs/python.md") + programs("bindings/python/README.md")


@pytest.mark.parametrize("program", PROGRAMS)
def test_program_of_the_guide_runs(program, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    exec(compile(program, "guide", "exec"), {"__name__": "guide"})


def test_all_programs_are_found():
    assert len(PROGRAMS) == 11


def test_docstrings_of_the_package_run():
    import doctest

    assert doctest.testmod(todana).attempted > 0
    assert doctest.testmod(todana).failed == 0
