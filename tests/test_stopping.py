"""SIGTERM in the middle of a step's work: nothing is begun after it, and a rerun goes on as if it had not come.

Work is counted, in passes through the model, because seconds say more about the machine; they are printed.
"""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from lanes import slow
from support import ROOT, nemotron, run_forked, script, short
from test_resume import digest, losses

from nemotron_shared.system.lock import holder_of

STOPPER = str(ROOT / "tests" / "stopper.py")
PATIENCE = 120.0


def stop_at(turn: int, stage: str, options: tuple[str, ...], home: Path) -> tuple[list[str], str]:
    """Run a stage and stop it in its `turn`-th pass; the passes before the signal, and what was said."""
    home.mkdir(exist_ok=True)
    counts = home / "passes"
    counts.unlink(missing_ok=True)
    command = [sys.executable, STOPPER, str(counts), str(turn), f"stages.{stage}.train", *options]
    environment = os.environ | {"NEMOTRON_HOME": str(home)}
    done = run_forked(command, home, environment)
    print(f"{stage}: {time.time() - counts.stat().st_mtime:.1f} s from the signal to the end")
    assert done.returncode == 130, done.stderr
    assert "Traceback" not in done.stderr
    passes = counts.read_text().split()
    assert passes.pop() == "signal", "passes were begun after the signal"
    return passes, done.stderr


@pytest.mark.parametrize("stage", slow("sft", "rl"))
def test_a_training_that_is_stopped_anywhere_follows_the_uninterrupted_one(run, tmp_path: Path, stage: str) -> None:
    # an untrained model never earns an exact match, and without rewards no weight would move
    rewarded = ("rewards=[{name: well_formed, weight: 1}]",) if stage == "rl" else ()
    options = (*short(stage), *rewarded, "train.train_iters=3", "train.eval_interval=2", "checkpoint.save_interval=50")
    name, stopped = f"super3-{stage}-model", tmp_path / "stopped"
    run(*script(stage), *options)
    silent = losses(tmp_path / "home", name)[0].get("zero_advantage_fraction", 0)
    # rl: a pass for each of 8 new tokens; then one for the rows that teach, and one for the others
    a_step = ["eval"] * (8 if stage == "rl" else 0) + ["train"] * (2 if 0 < silent < 1 else 1)

    passes, said = stop_at(len(a_step) + 1, stage, options, stopped)  # in step 2: in rl, at the first token
    assert passes == [*a_step, a_step[0]]
    assert "stopped after step 1 of 3" in said
    passes, said = stop_at(len(a_step) + 1, stage, options, stopped)  # in the validation of step 2
    assert passes[-1] == "eval"
    assert "continuing from step 1" in said
    assert "stopped after step 2 of 3" in said
    again = run(*script(stage), *options, env={"NEMOTRON_HOME": str(stopped)})
    assert "continuing from step 2" in again.stderr
    assert losses(stopped, name) == losses(tmp_path / "home", name)
    assert digest(stopped, name) == digest(tmp_path / "home", name)


@pytest.mark.slow
def test_a_validation_that_was_cut_off_behind_the_last_step_is_made_up_for(run, tmp_path: Path) -> None:
    options = (*short("sft"), "train.train_iters=2", "train.eval_interval=2", "checkpoint.save_interval=50")
    name, stopped = "super3-sft-model", tmp_path / "stopped"
    run(*script("sft"), *options)
    passes, said = stop_at(3, "sft", options, stopped)
    assert passes[-1] == "eval"
    assert "stopped after step 2 of 2" in said
    again = run(*script("sft"), *options, env={"NEMOTRON_HOME": str(stopped)})
    assert "continuing from step 2" in again.stderr
    assert losses(stopped, name) == losses(tmp_path / "home", name)
    assert digest(stopped, name) == digest(tmp_path / "home", name)


@pytest.mark.slow
def test_an_evaluation_stops_in_the_middle_of_an_answer(tmp_path: Path) -> None:
    options = (*short("eval"), "evaluation.tasks=[sums]", "evaluation.max_new_tokens=64")
    passes, said = stop_at(3, "eval", options, tmp_path / "home")
    assert set(passes) == {"eval"}
    assert "asking random weights" in said


def wait_until(moment, what: str) -> None:
    """Patiently: the machine may be busy."""
    until = time.monotonic() + PATIENCE
    while not moment():
        assert time.monotonic() < until, what
        time.sleep(0.05)


def owner(home: Path) -> int | None:
    """The process that works in the run's folder."""
    holders = (holder_of(lock) for lock in home.glob("runs/*/lock"))
    return next((holder.pid for holder in holders if holder), None)


def is_running(process: int) -> bool:
    """Whether a process is there and not only waits to be reaped."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_step_ends_with_the_command_that_started_it(tmp_path: Path, number: signal.Signals) -> None:
    environment = os.environ | {"NEMOTRON_HOME": str(tmp_path)}
    words = ("super3", "data", "prep", "pretrain", "-c", "tiny", "data_prep.synthetic_documents=200_000")
    parent = subprocess.Popen(nemotron(*words), cwd=tmp_path, env=environment, stderr=subprocess.PIPE, text=True)
    try:
        wait_until(lambda: owner(tmp_path), "the step has not begun")
        step = owner(tmp_path)
        assert step is not None and step != parent.pid
        assert is_running(step)
        parent.send_signal(number)
        wait_until(lambda: not is_running(step), "the step goes on without its parent")
        assert parent.wait(PATIENCE) == (130 if number == signal.SIGTERM else -signal.SIGKILL)
    finally:
        parent.kill()
