"""What a signal does to a run: ends it at once, or is noted, as the work allows."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from nemotron_shared.system import stop
from nemotron_shared.system.stop import Interrupted, Stopped, stop_signals
from nemotron_shared.tracking.run import Run, locked_run


def send(number: signal.Signals = signal.SIGTERM) -> None:
    os.kill(os.getpid(), number)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_work_with_nothing_to_save_ends_where_it_is(tmp_path: Path, number: signal.Signals) -> None:
    before, went_on = signal.getsignal(number), False
    with pytest.raises(Stopped, match="stopped"), locked_run(tmp_path, "work", ""):
        try:
            send(number)
            went_on = True
        except Exception:  # as libraries do
            went_on = True
    assert not went_on
    assert signal.getsignal(number) == before


def test_watched_work_goes_on_and_sees_the_request(tmp_path: Path) -> None:
    with locked_run(tmp_path, "work", "") as run:
        with run.watched():
            send()
            assert run.stop_requested
        with pytest.raises(Stopped):
            run.stop_if_requested()


def test_an_interruptible_part_is_left_in_the_middle_and_not_begun_after_a_request(tmp_path: Path) -> None:
    begun = []
    with locked_run(tmp_path, "work", "") as run, run.watched():
        for part in range(3):
            with pytest.raises(Interrupted), run.interruptible():
                begun.append(part)
                send()
                begun.append("went on")
        assert begun == [0]
        assert not run.stop_at_once  # what is saved now is not interrupted


def test_one_request_that_comes_twice_is_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run(tmp_path, "work")
    with stop_signals(run), run.watched():
        send()
        send()
        send(signal.SIGINT)
        monkeypatch.setattr(stop, "ECHO_SECONDS", 0.0)
        with pytest.raises(KeyboardInterrupt):
            send()


def test_a_broken_connection_to_a_stopped_rank_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RuntimeError), locked_run(tmp_path, "work", ""):
        raise RuntimeError("Connection closed by peer")
    with pytest.raises(Stopped), locked_run(tmp_path, "work", "") as run, run.watched():
        send()
        monkeypatch.setattr("nemotron_shared.tracking.run.world_size", lambda: 2)
        raise RuntimeError("Connection closed by peer")


ENDS = """
import atexit, os, signal, sys, time
from nemotron_shared.system import stop
stop.ECHO_SECONDS = float(sys.argv.pop())
atexit.register(lambda: (os.kill(os.getpid(), signal.SIGTERM), os.kill(os.getpid(), signal.SIGINT), time.sleep(0.1)))
from stages.pretrain.data_prep import main
sys.exit(main())
"""


@pytest.mark.parametrize(("echo_seconds", "code"), [(600, 2), (0, -signal.SIGTERM)])
def test_an_echo_at_the_very_end_raises_nothing_and_what_hangs_there_can_be_ended(
    tmp_path: Path, echo_seconds: int, code: int
) -> None:
    command = [sys.executable, "-c", ENDS, "-c", "no-such-config", str(echo_seconds)]
    done = subprocess.run(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == code
    assert "no config named 'no-such-config'" in done.stderr and "Traceback" not in done.stderr


def test_a_request_that_came_in_a_destructor_is_made_again(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    class Closing:
        def __del__(self) -> None:
            send()

    before = sys.unraisablehook
    with pytest.raises(Stopped), locked_run(tmp_path, "work", ""):
        Closing()
        time.sleep(60)
    assert sys.unraisablehook is before
    said = capfd.readouterr().err
    assert said.count("stopping") == 1
    assert "Traceback" not in said
