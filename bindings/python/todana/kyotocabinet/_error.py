"""Kyoto Cabinet's errors: a code with a name, and a message."""

import todana

from ._text import atoi

CODES = {
    "SUCCESS": (0, "success"),
    "NOIMPL": (1, "not implemented"),
    "INVALID": (2, "invalid operation"),
    "NOREPOS": (3, "no repository"),
    "NOPERM": (4, "no permission"),
    "BROKEN": (5, "broken file"),
    "DUPREC": (6, "record duplication"),
    "NOREC": (7, "no record"),
    "LOGIC": (8, "logical inconsistency"),
    "SYSTEM": (9, "system error"),
    "MISC": (15, "miscellaneous error"),
}
_NAMES = dict(CODES.values())


class Error(RuntimeError):
    """The code and the message of an error. Errors and numbers are compared by code."""

    def __init__(self, *parts):
        if len(parts) > 2:
            raise TypeError("invalid arguments")
        super().__init__(*parts)
        self._code, self._message = 0, "error"
        if len(parts) == 2:
            self.set(*parts)
        elif parts and isinstance(parts[0], str):
            code, colon, message = parts[0].partition(":")
            self._code, self._message = atoi(code), (message if colon else code).lstrip(" ")

    def set(self, code, message):
        """Sets the code and the message."""
        if not isinstance(code, int) and not isinstance(message, str):
            raise TypeError("invalid arguments")
        self._code, self._message = code, message

    def code(self):
        """Returns the code."""
        return self._code

    def name(self):
        """Returns the name of the code."""
        return _NAMES.get(self._code, "miscellaneous error")

    def message(self):
        """Returns the message."""
        return self._message

    def __str__(self):
        return f"{self.name()}: {self._message}"

    def __repr__(self):
        return f"<kyotocabinet.Error: {self}>"

    def _number(self, other):
        if isinstance(other, Error):
            return other._code
        return other if isinstance(other, int) else 2**31 - 1

    def __eq__(self, other):
        return self._code == self._number(other)

    def __ne__(self, other):
        return self._code != self._number(other)

    def __lt__(self, other):
        return self._code < self._number(other)

    def __le__(self, other):
        return self._code <= self._number(other)

    def __gt__(self, other):
        return self._code > self._number(other)

    def __ge__(self, other):
        return self._code >= self._number(other)

    __hash__ = RuntimeError.__hash__


RAISED = {}
for _name, (_code, _) in CODES.items():
    RAISED[_code] = type("X" + _name, (Error,), {"__module__": __name__, "__doc__": f"Raised for {_name}."})
    setattr(Error, _name, _code)
    setattr(Error, "X" + _name, RAISED[_code])


class Failure(Exception):
    """The failure of a call, which becomes the database's last error."""

    def __init__(self, code, message=None):
        super().__init__(code, message)
        self.code = code
        self.message = _NAMES[code] if message is None else message


def failure_of(error):
    """Returns the failure for an exception of Todana."""
    for kind, code in (
        (todana.BusyError, Error.LOGIC),
        (todana.ClosedError, Error.INVALID),
        (todana.CorruptError, Error.BROKEN),
        (todana.InvalidError, Error.INVALID),
        (todana.UnavailableError, Error.SYSTEM),
    ):
        if isinstance(error, kind):
            return Failure(code, str(error))
    return Failure(Error.MISC, str(error))
