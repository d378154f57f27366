"""Kyoto Cabinet's DB: opening, closing, calls for all records, and transactions.

The calls for single records are in `_records`.
"""

import os
import threading

import todana

from . import _kinds
from ._call import call, raised
from ._cursor import Cursor
from ._error import Error, Failure
from ._records import Records
from ._text import conv_bytes, text
from ._visitor import processed

_SNAPSHOT_HEAD = b"KCSS\n\0"
_MERGES = {0: "set", 1: "add", 2: "replace", 3: "append"}


class DB(Records):
    """A database with the methods of Kyoto Cabinet's DB."""

    GEXCEPTIONAL, GCONCURRENT = 1, 2
    OREADER, OWRITER, OCREATE, OTRUNCATE, OAUTOTRAN = 1, 2, 4, 8, 16
    OAUTOSYNC, ONOLOCK, OTRYLOCK, ONOREPAIR = 32, 64, 128, 256
    MSET, MADD, MREPLACE, MAPPEND = 0, 1, 2, 3

    def __init__(self, opts=0):
        self._base, self._path, self._is_reader = None, None, False
        # Counts the events that cursors do not survive, as in the original: opening, clearing, and
        # aborted transactions.
        self._opening = 0
        # The last error and the transaction of each thread.
        self._own = threading.local()
        rule = (Error.NOIMPL, Error.INVALID, Error.NOREPOS, Error.NOPERM, Error.BROKEN, Error.SYSTEM, Error.MISC)
        opts = opts if isinstance(opts, int) else 0
        self._rule = set(rule) if opts & self.GEXCEPTIONAL else set()
        self._is_concurrent = bool(opts & self.GCONCURRENT)

    # Helpers of the calls.

    def _failed(self, failure, answer):
        self._own.error = failure.code, failure.message
        if failure.code in self._rule:
            raise raised(failure)
        return answer

    def _transaction(self):
        return getattr(self._own, "transaction", None)

    def _open(self):
        """Returns the records of this thread's transaction or, without one, of the database."""
        if self._base is None:
            raise Failure(Error.INVALID, "not opened")
        transaction = self._transaction()
        return self._base if transaction is None else transaction

    def _writable(self):
        records = self._open()
        if self._is_reader:
            raise Failure(Error.NOPERM, "permission denied")
        return records

    def _expect_functions(self):
        """Fails if the database is concurrent.

        As in the original, a concurrent database does not call functions of the program.
        """
        if self._is_concurrent:
            raise Failure(Error.INVALID, "unsupported method")

    def _process(self, proc, message):
        if proc is not None:
            self._expect_functions()
        if not processed(proc, self._path, self.count(), self.size()):
            raise Failure(Error.LOGIC, message)

    @property
    def _keeps_direction(self):
        return self._path != "+"

    def error(self):
        """Returns the last error of this thread."""
        return Error(*getattr(self._own, "error", (Error.SUCCESS, "no error")))

    def tune_exception_rule(self, codes):
        """Sets which errors are raised."""
        self._rule = {code for code in codes if isinstance(code, int)}
        return True

    # Opening and closing.

    @call(False)
    def open(self, path=":", mode=OWRITER | OCREATE):
        """Opens a database by its name."""
        if self._base is not None:
            raise Failure(Error.INVALID, "already opened")
        name = text(conv_bytes(path)) or ":"
        mode = mode if isinstance(mode, int) else self.OWRITER | self.OCREATE
        self._base = _kinds.opened(name, mode, self)
        self._path, self._is_reader = name.partition("#")[0], not mode & self.OWRITER
        self._opening += 1
        return True

    @call(False)
    def close(self):
        """Closes the database and aborts an open transaction."""
        self._open()
        base, self._base, self._path = self._base, None, None
        self._own.transaction = None
        base.close()
        return True

    # Calls for all records.

    @call(-1)
    def count(self):
        """Returns the number of records."""
        return len(self._open())

    @call(-1)
    def size(self):
        """Returns the size of the files or of the memory in bytes."""
        self._open()
        return _kinds.size(self._base, self._path)

    @call(None)
    def path(self):
        """Returns the path, or None if the database is not open."""
        return self._path

    @call(None)
    def status(self):
        """Returns the status of the database as a dict of text."""
        self._open()
        found = {name: str(value) for name, value in self._base.status().items() if name not in ("name", "kind")}
        found.update(path=self._path, count=str(self.count()), size=str(self.size()), type=_kinds.number(self._path))
        return found

    @call(False)
    def clear(self):
        """Removes all records."""
        self._writable().clear()
        self._opening += 1
        return True

    @call(False)
    def synchronize(self, hard=False, proc=None):
        """Waits until all writes are on disk if `hard`, and then runs a file processor."""
        self._writable()
        if hard:
            self._base.sync()
        self._process(proc, "postprocessing failed")
        return True

    @call(False)
    def occupy(self, writable=False, proc=None):
        """Runs a file processor while no other thread writes."""
        self._writable() if writable else self._open()
        held = None if self._is_reader or self._transaction() is not None else self._base.transaction()
        try:
            self._process(proc, "processing failed")
        finally:
            if held is not None:
                held.abort()
        return True

    @call(False)
    def copy(self, dest):
        """Copies the database to a name that does not exist."""
        self._open()
        self._base.copy(_kinds.of_copy(text(conv_bytes(dest)), self._path))
        return True

    @call(False)
    def dump_snapshot(self, dest):
        """Writes all records to a snapshot file."""
        self._open()
        path = text(conv_bytes(dest))
        if not os.path.isdir(os.path.dirname(os.path.abspath(path))):
            raise Failure(Error.NOREPOS, "open failed")
        self._base.dump_snapshot(path)
        return True

    @call(False)
    def load_snapshot(self, src):
        """Stores the records of a snapshot file. A damaged file changes nothing."""
        self._writable()
        path = text(conv_bytes(src))
        try:
            with open(path, "rb") as file:
                is_snapshot = file.read(len(_SNAPSHOT_HEAD)) == _SNAPSHOT_HEAD
        except OSError:
            raise Failure(Error.NOREPOS, "open failed") from None
        if not is_snapshot:
            raise Failure(Error.INVALID, "invalid magic data of input stream")
        self._base.load_snapshot(path)
        return True

    @call(False)
    def merge(self, srcary, mode=MSET):
        """Stores the records of other databases."""
        self._writable()
        if mode not in _MERGES:
            raise Failure(Error.INVALID, f"there is no merge mode {mode}")
        for source in srcary:
            source._open()
        self._base.merge(*(source._base for source in srcary), mode=_MERGES[mode])
        return True

    # Transactions.

    @call(False)
    def begin_transaction(self, hard=False):
        """Begins a transaction of this thread once no other one is open."""
        self._writable()
        if self._transaction() is not None:
            raise Failure(Error.LOGIC, "the thread has a transaction open")
        self._own.transaction = self._base.transaction()
        self._own.is_hard = bool(hard)
        return True

    @call(False)
    def end_transaction(self, commit=True):
        """Commits or aborts this thread's transaction."""
        self._open()
        transaction = self._transaction()
        if transaction is None:
            raise Failure(Error.INVALID, "not in transaction")
        self._own.transaction = None
        if not commit:
            transaction.abort()
            self._opening += 1
            return True
        transaction.commit()
        if self._own.is_hard:
            self._base.sync()
        return True

    def transaction(self, proc, hard=False):
        """Runs a function in a transaction, which is committed if the function returns true."""
        if not self.begin_transaction(hard):
            return False
        commit = False
        try:
            commit = bool(proc())
        finally:
            is_ended = self.end_transaction(commit)
        return is_ended

    # Cursors.

    def cursor(self):
        """Creates a cursor."""
        return Cursor(self)

    def cursor_process(self, proc):
        """Runs a function with a cursor."""
        cursor = Cursor(self)
        try:
            proc(cursor)
        finally:
            cursor.disable()

    def __iter__(self):
        cursor = Cursor(self)
        cursor.jump()
        return cursor

    @classmethod
    def process(cls, proc, path=None, mode=None, opts=0):
        """Runs a function with an open database and closes it. Returns an error or None."""
        db = cls(opts)
        if not db.open(path, mode):
            return db.error()
        try:
            proc(db)
        finally:
            is_closed = db.close()
        return None if is_closed else db.error()

    def __str__(self):
        opened = self._base is not None
        return f"{self._path or '(None)'}: {self.count() if opened else -1}: {self.size() if opened else -1}"

    def __repr__(self):
        return f"<kyotocabinet.DB: {self}>"
