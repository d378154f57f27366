"""The calls of a database for its records."""

import todana

from ._call import call
from ._error import Error, Failure
from ._text import conv_bytes, integer, real, text
from ._visitor import decision


class Records:
    """The calls of a database for its records."""

    # Single records.

    @call(False)
    def set(self, key, value):
        """Stores a record."""
        self._writable().set(conv_bytes(key), conv_bytes(value))
        return True

    @call(False)
    def add(self, key, value):
        """Stores a record if the key has none."""
        if not self._writable().add(conv_bytes(key), conv_bytes(value)):
            raise Failure(Error.DUPREC)
        return True

    @call(False)
    def replace(self, key, value):
        """Replaces the value of a record."""
        if not self._writable().replace(conv_bytes(key), conv_bytes(value)):
            raise Failure(Error.NOREC)
        return True

    @call(False)
    def append(self, key, value):
        """Appends to the value of a record, or creates the record."""
        self._writable().append(conv_bytes(key), conv_bytes(value))
        return True

    @call(None)
    def increment(self, key, num=0, orig=0):
        """Adds to an integer and returns the sum.

        A missing record has the number `orig`. The greatest integer as `orig` always stores `num`,
        and the smallest one fails if there is no record.
        """
        return self._sum(self._writable().increment_binary, key, integer(num), integer(orig))

    @call(None)
    def increment_double(self, key, num=0, orig=0):
        """Adds to a real number and returns the sum.

        A missing record has the number `orig`. Positive infinity as `orig` always stores `num`,
        and negative infinity fails if there is no record.
        """
        return self._sum(self._writable().increment_double, key, real(num), real(orig))

    def _sum(self, add, key, num, orig):
        try:
            return add(conv_bytes(key), num, orig)
        except (KeyError, todana.InvalidError):
            raise Failure(Error.LOGIC) from None

    @call(False)
    def cas(self, key, oval, nval):
        """Replaces the value `oval` (None: no record) by `nval` (None: no record)."""
        old, new = (None if value is None else conv_bytes(value) for value in (oval, nval))
        if not self._writable().compare_and_swap(conv_bytes(key), old, new):
            raise Failure(Error.LOGIC, "status conflict")
        return True

    @call(False)
    def remove(self, key):
        """Removes a record."""
        if self._writable().seize(conv_bytes(key)) is None:
            raise Failure(Error.NOREC)
        return True

    def _got(self, value):
        if value is None:
            raise Failure(Error.NOREC)
        return value

    @call(None)
    def get(self, key):
        """Returns the value of a record."""
        return self._got(self._open().get(conv_bytes(key)))

    @call(None)
    def get_str(self, key):
        """Does the same as `get`, but returns text."""
        return text(self._got(self._open().get(conv_bytes(key))))

    @call(-1)
    def check(self, key):
        """Returns the size of a value."""
        return len(self._got(self._open().get(conv_bytes(key))))

    @call(None)
    def seize(self, key):
        """Removes a record and returns its value."""
        return self._got(self._writable().seize(conv_bytes(key)))

    @call(None)
    def get_seize(self, key):
        """Does the same as `seize`, but returns text."""
        return text(self._got(self._writable().seize(conv_bytes(key))))

    # The original's other name for this method.
    seize_str = get_seize

    def _shifted(self):
        cursor = self.cursor()
        if not cursor.jump():
            raise Failure(Error.NOREC)
        return cursor._seize()

    @call(None)
    def shift(self):
        """Removes the first record and returns its key and value."""
        self._writable()
        return self._shifted()

    @call(None)
    def shift_str(self):
        """Does the same as `shift`, but returns text."""
        self._writable()
        return tuple(map(text, self._shifted()))

    # Visitors.

    @call(False)
    def accept(self, key, visitor, writable=True):
        """Runs a visitor on a record.

        Runs it again if another thread changed the record meanwhile.
        """
        self._expect_functions()
        decide = decision(visitor, writable)
        (self._writable() if writable else self._open()).visit(conv_bytes(key), decide)
        return True

    @call(False)
    def accept_bulk(self, keys, visitor, writable=True):
        """Runs a visitor on several records. All of its changes apply, or none."""
        self._expect_functions()
        decide = decision(visitor, writable)
        keys = [conv_bytes(key) for key in keys]
        if writable:
            self._writable().visit_many(keys, decide)
        else:
            records = self._open()
            for key in keys:
                decide(key, records.get(key))
        return True

    @call(False)
    def iterate(self, visitor, writable=True):
        """Runs a visitor on every record and applies each change by itself."""
        self._expect_functions()
        decide = decision(visitor, writable)
        (self._writable() if writable else self._open()).visit_each(decide)
        return True

    # Many records.

    def _at_once(self, atomic, act):
        """Runs `act` with the records; in a transaction if `atomic`."""
        records = self._writable()
        if not atomic or self._transaction() is not None:
            return act(records)
        with self._base.transaction() as transaction:
            return act(transaction)

    @call(-1)
    def set_bulk(self, recs, atomic=True):
        """Stores the records of a mapping and returns their number."""
        pairs = {conv_bytes(key): conv_bytes(value) for key, value in recs.items()}
        self._at_once(atomic, lambda records: records.set_many(pairs))
        return len(pairs)

    @call(-1)
    def remove_bulk(self, keys, atomic=True):
        """Removes records and returns the number of those that existed."""
        names = [conv_bytes(key) for key in keys]
        return self._at_once(atomic, lambda records: records.delete_many(names))

    def _bulk(self, keys, atomic):
        records, names = self._open(), [conv_bytes(key) for key in keys]
        if not atomic or self._transaction() is not None:
            return sorted(records.get_many(names).items())
        with self._base.snapshot() as snapshot:
            return sorted(snapshot.get_many(names).items())

    @call(None)
    def get_bulk(self, keys, atomic=True):
        """Returns the existing records among these keys."""
        return dict(self._bulk(keys, atomic))

    @call(None)
    def get_bulk_str(self, keys, atomic=True):
        """Does the same as `get_bulk`, but returns text."""
        return {text(key): text(value) for key, value in self._bulk(keys, atomic)}

    # Searches for keys.

    def _keys(self, keys):
        return [text(key) for key in keys]

    @call(None)
    def match_prefix(self, prefix, max=-1):
        """Returns the keys with this prefix."""
        return self._keys(self._open().match_prefix(conv_bytes(prefix), _limit(max)))

    @call(None)
    def match_regex(self, regex, max=-1):
        """Returns the keys in which an extended regular expression of POSIX matches."""
        try:
            pattern = todana._todana._regex_of_posix(conv_bytes(regex))
            return self._keys(self._open().match_regex(pattern, _limit(max)))
        except todana.InvalidError:
            raise Failure(Error.LOGIC, "compilation failed") from None

    @call(None)
    def match_similar(self, origin, range=1, utf=False, max=-1):
        """Returns the keys most similar to this one, the best first."""
        found = self._open().match_similar(conv_bytes(origin), integer(range), _limit(max), by_bytes=not utf)
        return self._keys(key for key, _ in found)

    # As a mapping.

    def __len__(self):
        return len(self._open())

    def __getitem__(self, key):
        return None if self._base is None else self._open().get(conv_bytes(key))

    def __setitem__(self, key, value):
        if not self.set(key, value):
            raise RuntimeError("DB::set failed")

    def __delitem__(self, key):
        if not self.remove(key):
            raise RuntimeError("DB::remove failed")


def _limit(number):
    limit = -1 if number is None else integer(number)
    return None if limit < 0 else limit
