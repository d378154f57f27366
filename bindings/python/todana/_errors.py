"""The exceptions of Todana. Each name shows how a program can react."""


class Error(Exception):
    """Base class of all errors of the store. A missing record is a KeyError or None instead."""


class InvalidError(Error, ValueError):
    """The call is invalid. Correct it."""


class FullError(Error):
    """Memory or disk space is exhausted. Free some."""


class BusyError(Error):
    """Another thread or process uses the object. Try again later."""


class CorruptError(Error):
    """Stored data is damaged. Run `todana salvage`."""


class UnavailableError(Error, OSError):
    """The disk cannot be read or written now."""


class ClosedError(Error, ValueError):
    """The object is closed. Open it again."""


for _error in (Error, InvalidError, FullError, BusyError, CorruptError, UnavailableError, ClosedError):
    _error.__module__ = "todana"
del _error
