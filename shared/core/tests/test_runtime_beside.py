"""Half of the work in a copy of the process: the same results, whatever becomes of the copy."""

import multiprocessing
import os
import signal
import sys
import time

import pytest

from nemotron_shared.runtime import beside, machine
from nemotron_shared.runtime.beside import Beside, core_to_spare, in_halves

linux = pytest.mark.skipif(sys.platform != "linux", reason="copies of a process are made on Linux only")


def who(item: int) -> tuple[int, int]:
    return item, os.getpid()


@linux
def test_every_second_item_is_worked_on_by_a_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(beside, "core_to_spare", lambda threads: True)
    found = in_halves(1, who, [4, 5, 6])
    assert [item for item, _ in found] == [4, 5, 6]
    assert found[0][1] == found[2][1] == os.getpid() != found[1][1]
    assert in_halves(1, who, [7]) == [(7, os.getpid())]
    monkeypatch.setattr(beside, "core_to_spare", lambda threads: False)
    assert in_halves(1, who, [4, 5]) == [(4, os.getpid()), (5, os.getpid())]


@linux
def test_a_copy_that_fails_has_its_work_done_here() -> None:
    here = os.getpid()

    def fails() -> int:
        if os.getpid() != here:
            raise MemoryError
        return here

    def is_killed() -> int:
        if os.getpid() != here:
            os.kill(os.getpid(), signal.SIGKILL)
        return here

    for work in (fails, is_killed):
        with Beside(work) as other:
            assert other.result() == here


@linux
def test_a_copy_that_never_answers_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(beside, "PATIENT_SECONDS", 0.05)
    here = os.getpid()
    with Beside(lambda: None if os.getpid() == here else time.sleep(600)) as other:
        assert other.result() is None
    assert not multiprocessing.active_children()


@linux
def test_nothing_is_left_of_a_copy_when_our_half_fails() -> None:
    with pytest.raises(ValueError, match="ours"), Beside(lambda: time.sleep(600)):
        raise ValueError("ours")
    assert not multiprocessing.active_children()


@linux
def test_a_core_is_to_spare_where_twice_the_threads_have_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "ACCELERATORS", ())
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 2, 3})
    assert [core_to_spare(threads) for threads in (1, 2, 3, None)] == [True, True, False, False]
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert not core_to_spare(1)
