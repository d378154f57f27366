"""Tests that Ctrl-C ends a wait."""

import signal
import subprocess
import sys
import textwrap

import pytest

PROGRAM = """
    import os, signal, sys, threading
    import todana

    # A thread keeps the interpreter until it releases it. The other thread therefore continues only
    # after the main thread has entered the call.
    sys.setswitchinterval(1000)
    signal.signal(signal.SIGINT, {handler})
    db = todana.open(sys.argv[1])
    db.update(a="1", b="2", n="3")
    begun, waits, may_end = threading.Event(), threading.Event(), threading.Event()

    def outcome(call):
        try:
            return call()
        except todana.BusyError as error:
            return error

    def other():
        t = db.transaction()
        t["a"] = "of the transaction"
        begun.set()
        waits.wait()
        os.kill(os.getpid(), signal.SIGINT)
        may_end.wait()
        try:
            t.commit()
        except todana.ClosedError:
            print("aborted")

    thread = threading.Thread(target=other)
    thread.start()
    begun.wait()
    cursor = db.cursor()
    cursor.jump("b")
    try:
        waits.set()
        {call}
    except KeyboardInterrupt:
        print("interrupted")
    {after}
    may_end.set()
    thread.join()
    print(db.closed or sorted(db.items()))
    db.close()
"""


def run(place, call, handler="signal.default_int_handler", after="pass"):
    program = textwrap.dedent(PROGRAM).format(call=call, handler=handler, after=after)
    # The timeout is long enough for a busy machine. An uninterruptible call would never end.
    ran = subprocess.run([sys.executable, "-c", program, place], capture_output=True, text=True, timeout=120)
    assert (ran.returncode, ran.stderr) == (0, "")
    return ran.stdout.splitlines()


AFTERWARDS = "[(b'a', b'of the transaction'), (b'b', b'2'), (b'n', b'3')]"


@pytest.mark.parametrize(
    "call",
    [
        "db.transaction()",
        "db['b'] = '3'",
        "del db['b']",
        "db.set_many({'c': '3'})",
        "db.increment('n')",
        "db.increment('none')",
        "db.get_record('b')",
        "db.seize('b')",
        "db.setdefault('c', '3')",
        "db.snapshot()",
        "db.clear()",
        "cursor.set_value('3')",
    ],
)
def test_interrupted_wait_changes_nothing(place, call):
    assert run(place, call) == ["interrupted", AFTERWARDS]


def test_handler_without_exception_continues_the_wait():
    # The handler lets the other thread end its transaction, and the call continues.
    lines = run("mem:tree", "db['b'] = '2'; print('written')", handler="lambda *_: may_end.set()")
    assert lines == ["written", AFTERWARDS]


def test_handler_can_close_the_database():
    # The handler aborts the transaction of the other thread, and the call completes.
    lines = run("mem:tree", "db['b'] = '3'; print('written')", handler="lambda *_: db.close()")
    assert lines == ["written", "aborted", "True"]


def test_handler_cannot_use_the_interrupted_cursor():
    # Earlier versions waited forever, because the call continues only after its handler has
    # returned.
    handler = "lambda *_: (print(outcome(cursor.step)), may_end.set())"
    lines = run("mem:tree", "cursor.set_value('2'); print(cursor.key)", handler=handler)
    assert lines == ["the cursor is in use by the call that a signal has interrupted", "b'b'", AFTERWARDS]


def test_calls_work_after_an_interrupt():
    after = "print(db['b'])\ntry: db['none']\nexcept KeyError: print('missing')"
    assert run("mem:hash", "db['b'] = '3'", after=after) == ["interrupted", "b'2'", "missing", AFTERWARDS]


def test_signal_of_another_process_interrupts(tmp_path):
    """Sends the signal from another process, as a terminal does."""
    program = textwrap.dedent(
        """
        import signal, sys, threading, todana

        # A background process of a shell inherits an ignored SIGINT, and Python leaves it
        # ignored.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        db = todana.open("mem:hash")
        begun = threading.Event()

        def other():
            t = db.transaction()
            begun.set()
            threading.Event().wait()

        threading.Thread(target=other, daemon=True).start()
        begun.wait()
        print("begun", flush=True)
        db.transaction()
        """
    )
    child = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert child.stdout.readline() == "begun\n"
    child.send_signal(signal.SIGINT)
    _, complaint = child.communicate(timeout=120)
    assert complaint.rstrip().endswith("KeyboardInterrupt")
    assert child.returncode == -signal.SIGINT
