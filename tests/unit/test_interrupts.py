"""Ctrl-C waits for the end of an import. While worker processes begin, who starts them answers it
alone, at the end."""

import os
import signal
import subprocess
import sys
import threading

import pytest

from avatar_v.base.interrupts import interrupts_deferred

SLOW = """
import time
print("half", flush=True)
for _ in range(50):
    time.sleep(0.01)
print("whole", flush=True)
"""
LIBRARY = """
try:
    import slow
except BaseException:  # and goes on without it
    pass
"""
COMMAND = """
import sys
from avatar_v.cli import guarded

def run(words):
    import library
    import time
    time.sleep(60)

sys.exit(guarded("avatar-v", [], run))
"""
ASLEEP = "import time; print('up', flush=True); time.sleep(60)"


@pytest.fixture(autouse=True)
def answering():
    """A shell that runs the tests in the background has them ignore SIGINT."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("elsewhere", [False, True], ids=["this thread", "another thread"])
def test_an_interrupt_inside_is_raised_at_the_end(elsewhere: bool) -> None:
    ready, sent, steps = threading.Event(), threading.Event(), []

    def receive() -> None:  # a thread that began before takes the signal instead of this one
        ready.wait()
        os.kill(os.getpid(), signal.SIGINT)
        sent.set()

    def work() -> None:
        with interrupts_deferred():
            ready.set()
            if elsewhere:
                sent.wait()
            else:
                receive()
            steps.append("whole")
        steps.append("never reached")

    thread = threading.Thread(target=receive if elsewhere else sent.is_set)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        work()
    assert steps == ["whole"]
    thread.join()
    with pytest.raises(KeyboardInterrupt):  # all is as before
        os.kill(os.getpid(), signal.SIGINT)


def test_processes_that_begin_inside_do_not_hear_it() -> None:
    with interrupts_deferred():
        child = subprocess.Popen([sys.executable, "-c", ASLEEP], stdout=subprocess.PIPE)
    other = subprocess.Popen([sys.executable, "-c", ASLEEP], stdout=subprocess.PIPE)
    for process in (child, other):
        assert process.stdout is not None
        assert process.stdout.readline() == b"up\n"
        process.send_signal(signal.SIGINT)
    assert other.wait(30) != 0
    assert child.poll() is None
    child.kill()
    child.wait()


def test_another_thread_changes_nothing() -> None:
    seen = []

    def work() -> None:
        with interrupts_deferred():
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [signal.default_int_handler]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_in_an_import_ends_the_command_when_the_import_is_done(
    tmp_path, number
) -> None:
    """Also where a library catches what an import of its own raises."""
    (tmp_path / "slow.py").write_text(SLOW)
    (tmp_path / "library.py").write_text(LIBRARY)
    answered = "import signal\nfrom avatar_v.base.interrupts import interrupted\n"
    answered += "signal.signal(signal.SIGTERM, interrupted)\n"
    child = subprocess.Popen(
        [sys.executable, "-c", answered + COMMAND],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "half\n"
    child.send_signal(number)
    out, err = child.communicate(timeout=30)
    assert (out, err, child.returncode) == ("whole\n", "avatar-v: interrupted\n", 130)
