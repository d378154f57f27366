"""Runs a program in which `import kyotocabinet` imports todana.kyotocabinet."""

import os
import runpy
import sys

from . import install

USAGE = "usage: python -m todana.kyotocabinet PROGRAM [ARGUMENT]...\n       python -m todana.kyotocabinet -m MODULE [ARGUMENT]..."


def main(words):
    if not words or words == ["-m"] or words[0] in ("-h", "--help"):
        sys.exit(USAGE)
    install()
    if words[0] == "-m":
        sys.argv = words[1:]
        sys.path[0] = os.getcwd()
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = words
        sys.path[0] = os.path.dirname(os.path.abspath(words[0]))
        runpy.run_path(words[0], run_name="__main__")


main(sys.argv[1:])
