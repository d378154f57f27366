"""The base classes of a program's visitors and file processors."""

import todana

from ._text import conv_bytes


class Visitor:
    """Base class of functions that read and change records."""

    # Compared by identity, as in the original.
    NOP = "[{}]".format("NOP")
    REMOVE = "[{}]".format("REMOVE")

    def visit_full(self, key, value):
        """Called with a record; returns NOP, REMOVE or the new value."""
        return self.NOP

    def visit_empty(self, key):
        """Called with a key that has no record; returns NOP or the value of a new record."""
        return self.NOP


class FileProcessor:
    """Base class of functions that process the file of a database."""

    def process(self, path, count, size):
        """Called with the path, the number of records and the size. Returns True on success."""
        return True


def decision(visitor, writable):
    """Returns the visitor as a function for Todana's records."""
    if not isinstance(visitor, Visitor) and not callable(visitor):
        raise TypeError("invalid arguments")

    def decide(key, value):
        if callable(visitor):
            answer = visitor(key, value)
        elif value is None:
            answer = visitor.visit_empty(key)
        else:
            answer = visitor.visit_full(key, value)
        if answer is None or answer is Visitor.NOP:
            return None
        if not writable:
            raise RuntimeError("confliction with the read-only parameter")
        return todana.REMOVE if answer is Visitor.REMOVE else conv_bytes(answer)

    return decide


def processed(processor, path, count, size):
    """Runs a file processor and returns its success. None counts as success."""
    if callable(processor):
        return bool(processor(path, count, size))
    return not isinstance(processor, FileProcessor) or bool(processor.process(path, count, size))
