"""What can go wrong. The names say what the caller can do about it."""


class Error(Exception):
    """Whatever the store reports. That there is no such record is a KeyError, or None."""


class InvalidError(Error, ValueError):
    """The call is wrong: mend it."""


class FullError(Error):
    """There is no memory or space: make room."""


class BusyError(Error):
    """Somebody else has it: try again later."""


class CorruptError(Error):
    """Stored bytes are damaged: salvage them."""


class UnavailableError(Error, OSError):
    """The disk cannot be reached, read or written now."""


class ClosedError(Error, ValueError):
    """It was closed: open it again."""


for _error in (Error, InvalidError, FullError, BusyError, CorruptError, UnavailableError, ClosedError):
    _error.__module__ = "todana"
del _error
