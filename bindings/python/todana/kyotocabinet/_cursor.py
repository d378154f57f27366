"""Cursors like those of Kyoto Cabinet, whose calls to read and remove can also step.

Invariant: `jump_back` and `step_back` make the cursor of an ordered database move backward, until
`jump` or `step`. If the current record was removed, the cursor moves in its direction before it
reads or changes a record.
"""

import todana

from ._call import call
from ._error import Error, Failure
from ._text import conv_bytes, text
from ._visitor import decision


class Cursor:
    """A position in a database."""

    def __init__(self, db):
        from ._database import DB

        if not isinstance(db, DB):
            raise TypeError("invalid arguments")
        self._owner, self._at, self._records, self._opening = db, None, None, 0
        self._is_backward = self._is_disabled = False

    def _place(self):
        """Returns Todana's cursor in this thread's transaction or, without one, in the database."""
        records = self._owner._open()
        is_lost = self._opening != self._owner._opening
        if is_lost or self._records is not records:
            key = None if is_lost or self._at is None else self._at.key
            self._records, self._at, self._opening = records, records.cursor(), self._owner._opening
            if key is not None and not self._at.jump(key) and self._is_backward:
                self._at.jump_back(key)
        return self._at

    def _moved(self, move, *key):
        try:
            is_there = move(*key)
        except todana.InvalidError:
            raise Failure(Error.NOIMPL) from None
        if not is_there:
            raise Failure(Error.NOREC)
        return True

    def _key(self):
        """Returns the key of the current record, or of the next one if it was removed."""
        at = self._place()
        while (key := at.key) is not None:
            if key in self._records:
                return key
            # From a removed record the cursor moves forward, even if its direction is backward. At
            # the end it moves backward.
            if not at.step() and self._is_backward:
                at.jump_back(key)
        raise Failure(Error.NOREC)

    def _advance(self, is_wanted=True):
        if is_wanted:
            at = self._place()
            at.step_back() if self._is_backward else at.step()

    def _read(self, step):
        while True:
            key = self._key()
            value = self._records.get(key)
            if value is not None:
                self._advance(step)
                return key, value

    @call(None)
    def get(self, step=False):
        """Returns the current key and value. If `step`, then moves in the current direction."""
        return self._read(step)

    @call(None)
    def get_str(self, step=False):
        """Does the same as `get`, but returns text."""
        return tuple(map(text, self._read(step)))

    @call(None)
    def get_key(self, step=False):
        """Returns the current key. If `step`, then moves in the current direction."""
        return self._read(step)[0]

    @call(None)
    def get_key_str(self, step=False):
        """Does the same as `get_key`, but returns text."""
        return text(self._read(step)[0])

    @call(None)
    def get_value(self, step=False):
        """Returns the current value. If `step`, then moves in the current direction."""
        return self._read(step)[1]

    @call(None)
    def get_value_str(self, step=False):
        """Does the same as `get_value`, but returns text."""
        return text(self._read(step)[1])

    def _seize(self):
        while True:
            key = self._key()
            self._owner._writable()
            value = self._records.seize(key)
            if value is not None:
                self._advance()
                return key, value

    @call(None)
    def seize(self):
        """Removes the current record, moves in the current direction, and returns key and value."""
        return self._seize()

    @call(None)
    def seize_str(self):
        """Does the same as `seize`, but returns text."""
        return tuple(map(text, self._seize()))

    @call(False)
    def remove(self):
        """Removes the current record and moves in the current direction."""
        return bool(self._seize())

    @call(False)
    def set_value(self, value, step=False):
        """Replaces the current value. If `step`, then moves in the current direction."""
        while True:
            key = self._key()
            self._owner._writable()
            if self._records.replace(key, conv_bytes(value)):
                self._advance(step)
                return True

    @call(False)
    def accept(self, visitor, writable=True, step=False):
        """Runs a visitor on the current record.

        Moves in the current direction if `step`, or if the visitor removed the record.
        """
        self._owner._expect_functions()
        decide, was_removed = decision(visitor, writable), False

        def watched(key, value):
            nonlocal was_removed
            answer = None if value is None else decide(key, value)
            was_removed = answer is todana.REMOVE
            return answer

        if writable:
            self._owner._writable()
        key = self._key()
        self._records.visit(key, watched)
        self._advance(step or was_removed)
        return True

    @call(False)
    def jump(self, key=None):
        """Moves to the first record, or to the record with this key.

        If there is no such record in an ordered database, moves to the first record after the key.
        """
        at, self._is_backward = self._place(), False
        return self._moved(at.first) if key is None else self._moved(at.jump, conv_bytes(key))

    @call(False)
    def jump_back(self, key=None):
        """Moves to the last record, or to the record with this key.

        If there is no such record, moves to the last record before the key.

        Later steps go backward.
        """
        at, self._is_backward = self._place(), self._owner._keeps_direction
        return self._moved(at.last) if key is None else self._moved(at.jump_back, conv_bytes(key))

    @call(False)
    def step(self):
        """Moves to the next record."""
        at, self._is_backward = self._place(), False
        return self._moved(at.step)

    @call(False)
    def step_back(self):
        """Moves to the previous record. Later steps go backward."""
        at, keeps = self._place(), self._owner._keeps_direction
        if at.key is None and not keeps:
            return self._moved(at.last)
        self._is_backward = keeps
        return self._moved(at.step_back)

    def disable(self):
        """Disables the cursor."""
        self._is_disabled = True

    def db(self):
        """Returns the database."""
        return False if self._is_disabled else self._owner

    def error(self):
        """Returns the last error of the database."""
        return None if self._is_disabled else self._owner.error()

    def __iter__(self):
        return self

    def __next__(self):
        key = self.get_key(True)
        if key is None:
            raise StopIteration
        return key

    def __str__(self):
        if self._is_disabled:
            return "(disabled)"
        key = self.get_key_str()
        return f"{self._owner.path() or '(None)'}: {'(None)' if key is None else key}"

    def __repr__(self):
        return f"<kyotocabinet.Cursor: {self}>"
