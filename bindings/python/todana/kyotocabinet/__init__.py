"""Kyoto Cabinet's module for Python on Todana, for programs that say `import kyotocabinet`.

It never stands in for an installed kyotocabinet unasked. Either of these asks:

    python -m todana.kyotocabinet PROGRAM ARGUMENTS     a program runs as it is
    todana.kyotocabinet.install()                       `import kyotocabinet` means this module from now on

or say `from todana import kyotocabinet`. docs/python.md tells what differs from the original.

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

# Of the library that programs were written for.
VERSION = "1.2.76"


def install():
    """Makes `import kyotocabinet` mean this module, in this process. Fails if another one was imported by that name before."""
    module = _sys.modules[__name__]
    there = _sys.modules.setdefault("kyotocabinet", module)
    if there is not module:
        place = getattr(there, "__file__", "unknown place")
        raise RuntimeError(f"kyotocabinet: already imported from {place}; install before that")
