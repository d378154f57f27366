"""A call of the module's: a failure is noted, raised if the database's rule says so, and answered by a value otherwise."""

import functools

import todana

from ._error import RAISED, Failure, failure_of


def call(failed):
    """Makes a method a call that returns `failed` where it fails."""

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
    """The exception for a failure."""
    return RAISED[failure.code](failure.code, failure.message)
