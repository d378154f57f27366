"""Handles failures of the module's calls.

A failure becomes the database's last error. It is raised if the database is set to raise it;
otherwise the call returns a value.
"""

import functools

import todana

from ._error import RAISED, Failure, failure_of


def call(failed):
    """Wraps a method in a call that returns `failed` on failure."""

    def decorate(method):
        @functools.wraps(method)
        def run(self, *arguments):
            if getattr(self, "_is_disabled", False):
                return failed
            try:
                return method(self, *arguments)
            except Failure as failure:
                found = failure
            except todana.Error as error:
                found = failure_of(error)
            return getattr(self, "_owner", self)._failed(found, failed)

        return run

    return decorate


def raised(failure):
    """Returns the exception for a failure."""
    return RAISED[failure.code](failure.code, failure.message)
