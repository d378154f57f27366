"""The ends of processes: what is open then is closed as it should be."""

import atexit
import os
import sys
import threading

from ._todana import _after_fork, _close_all  # type: ignore[import-not-found]

# The child of a fork leaves alone what its parent has open.
atexit.register(_close_all)
os.register_at_fork(after_in_child=_after_fork)

_finalizer = None


def close_at_end():
    """Called before a database is opened. The children of multiprocessing end by os._exit, which leaves atexit out: they have finalizers."""
    global _finalizer
    # Where it was never imported this is no child of its. One of its children begins without its parent's finalizers.
    util, process = (sys.modules.get(f"multiprocessing.{name}") for name in ("util", "process"))
    if util is None or process is None or process.parent_process() is None:
        return
    if _finalizer is None or not _finalizer.still_active():
        # After those of others, which may still write.
        _finalizer = util.Finalize(None, _end_child, exitpriority=-100)


def _end_child():
    # They are waited for anyhow, though only after the finalizers.
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and not thread.daemon:
            thread.join()
    _close_all()
