"""Kyoto Cabinet's module for Python on Todana, for programs that use `import kyotocabinet`.

It replaces an installed kyotocabinet only on request, in one of two ways:

    python -m todana.kyotocabinet PROGRAM ARGUMENTS     runs an unchanged program
    todana.kyotocabinet.install()                       applies to later `import kyotocabinet`

A program can also use `from todana import kyotocabinet`. docs/python.md lists the differences to
the original.

>>> from todana import kyotocabinet as kc
>>> db = kc.DB()
>>> db.open("%")
True
>>> db.increment("visits", 5), db.get("visits")
(5, b'\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x05')
"""

import sys as _sys

from ._cursor import Cursor
from ._database import DB
from ._error import Error
from ._text import atof, atoi, atoix, conv_bytes, hash_fnv, hash_murmur, levdist
from ._visitor import FileProcessor, Visitor

__all__ = [
    "DB",
    "VERSION",
    "Cursor",
    "Error",
    "FileProcessor",
    "Visitor",
    "atof",
    "atoi",
    "atoix",
    "conv_bytes",
    "hash_fnv",
    "hash_murmur",
    "install",
    "levdist",
]

# The version of the library for which programs were written.
VERSION = "1.2.76"


def install():
    """Lets `import kyotocabinet` import this module in this process.

    Fails if the process has already imported another module of that name.
    """
    module = _sys.modules[__name__]
    imported = _sys.modules.setdefault("kyotocabinet", module)
    if imported is not module:
        place = getattr(imported, "__file__", "unknown place")
        raise RuntimeError(f"kyotocabinet: already imported from {place}; install before that")
