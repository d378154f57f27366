"""Visitors and file processors, which a program derives from."""

import todana

from ._text import conv_bytes


class Visitor:
    """Interface to access a record."""

    # Known by identity, as in the original.
    NOP = "[{}]".format("NOP")
    REMOVE = "[{}]".format("REMOVE")

    def visit_full(self, key, value):
        """Called with a record; returns NOP, REMOVE or the new value."""
        return self.NOP

    def visit_empty(self, key):
        """Called where there is no record; returns NOP or the value of a new one."""
        return self.NOP


class FileProcessor:
    """Interface to process the database file."""

    def process(self, path, count, size):
        """Called with the path, the number of records and the size; returns whether it has succeeded."""
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
    """Runs a file processor; returns whether it has succeeded. None has."""
    if callable(processor):
        return bool(processor(path, count, size))
    return not isinstance(processor, FileProcessor) or bool(processor.process(path, count, size))
