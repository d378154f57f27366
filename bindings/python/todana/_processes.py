"""Closes open databases when a process ends, and disables them in forked children."""

import atexit
import os
import sys
import threading

from ._todana import _after_fork, _close_all  # type: ignore[import-not-found]

# The child of a fork must not use or close its parent's databases.
atexit.register(_close_all)
os.register_at_fork(after_in_child=_after_fork)

_finalizer = None


def close_at_end():
    """Called before a database is opened.

    Registers a finalizer in children of multiprocessing, because they end by os._exit, which skips
    atexit.
    """
    global _finalizer
    # Without the module, this process is not a child of multiprocessing. A child begins without its
    # parent's finalizers.
    util, process = (sys.modules.get(f"multiprocessing.{name}") for name in ("util", "process"))
    if util is None or process is None or process.parent_process() is None:
        return
    if _finalizer is None or not _finalizer.still_active():
        # Runs after other finalizers, which may still write.
        _finalizer = util.Finalize(None, _end_child, exitpriority=-100)


def _end_child():
    # multiprocessing joins these threads, too, but only after the finalizers.
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and not thread.daemon:
            thread.join()
    _close_all()
