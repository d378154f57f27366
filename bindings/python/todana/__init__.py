"""Todana: a key-value store for many small records, in memory or on disk, as a persistent dict.

>>> import todana
>>> with todana.open("mem:tree") as db:
...     db["hello"] = "world"
...     db["hello"]
b'world'
"""

import collections.abc as _abc

from . import _processes
from ._errors import BusyError, ClosedError, CorruptError, Error, FullError, InvalidError, UnavailableError
from ._todana import (
    DB,
    REMOVE,
    Cursor,
    Fixed,
    Iterator,
    Query,
    Record,
    Records,
    Removal,
    RowSet,
    Snapshot,
    Table,
    Transaction,
    View,
    original_key,
    stored_key,
)

__all__ = [
    "DB",
    "REMOVE",
    "BusyError",
    "ClosedError",
    "CorruptError",
    "Cursor",
    "Error",
    "Fixed",
    "FullError",
    "InvalidError",
    "Iterator",
    "Query",
    "Record",
    "Records",
    "Removal",
    "RowSet",
    "Snapshot",
    "Table",
    "Transaction",
    "UnavailableError",
    "View",
    "open",
    "original_key",
    "stored_key",
]

_abc.MutableMapping.register(Records)
_abc.Collection.register(View)
_abc.Iterator.register(Iterator)


def open(name, **options):
    """Opens a database by its name: mem:hash, mem:tree, PATH.hash, PATH.tree and others.

    Takes DB's options.
    """
    return DB(name, **options)
