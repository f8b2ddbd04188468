"""A function that runs in a copy of this process returns what it would return here."""

import os
import signal
import threading

import pytest

from nemotron_shared.system.background import call_in_background, can_fork
from nemotron_shared.system.errors import UserError
from nemotron_shared.system.process import ENDING


@pytest.fixture(autouse=True)
def _forking(monkeypatch: pytest.MonkeyPatch) -> None:
    """Test runners have threads, and other tests may have imported torch."""
    monkeypatch.setattr("nemotron_shared.system.background.can_fork", lambda: True)


def test_the_result_comes_from_another_process() -> None:
    answer = call_in_background(lambda number: (os.getpid(), number + 1), 4)
    process, number = answer()
    assert process != os.getpid()
    assert number == 5


def test_what_it_raises_is_raised_here() -> None:
    def refuse() -> None:
        raise UserError("no tokenizer", "give one")

    answer = call_in_background(refuse)
    with pytest.raises(UserError, match="no tokenizer"):
        answer()


def test_where_the_copy_is_killed_the_work_is_done_here() -> None:
    here = os.getpid()

    def fragile() -> int:
        if os.getpid() != here:
            os.kill(os.getpid(), signal.SIGKILL)
        return os.getpid()

    assert call_in_background(fragile)() == here


def test_beside_a_thread_nothing_is_forked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    done = threading.Event()
    thread = threading.Thread(target=done.wait)
    thread.start()
    try:
        assert not can_fork()
        assert call_in_background(os.getpid)() == os.getpid()
    finally:
        done.set()
        thread.join()


def test_the_copy_hears_what_asks_it_to_end() -> None:
    answer = call_in_background(lambda: ENDING & signal.pthread_sigmask(signal.SIG_BLOCK, ()))
    assert answer() == set()
