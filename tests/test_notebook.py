"""`import nemotron`: the page's code runs, and a call is the command of the same words."""

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from documents import blocks
from scipy.stats import t
from support import ROOT, SHORT, Forked, last_values, made_in, short
from support import nemotron as command_line

import nemotron
from nemotron_app.notebook import commands
from nemotron_app.notebook.interval import QUANTILES
from nemotron_shared.artifacts import Store

PAGE = ROOT / "docs" / "notebook.md"
LATER = ("evaluate(", "ask(", "finetune(")
"""What takes longer than a short training."""
CHATS = [{"question": f"What is {one}+{two}?", "answer": str(one + two)} for one in range(4) for two in range(4)]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder with its own store, in which commands are forked, as everywhere in these tests."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NEMOTRON_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(commands, "start", lambda command, *rest: Forked(command, Path.cwd(), *rest))
    return tmp_path


def shortened(command: list[str], *rest: object) -> Forked:
    """A command whose training or evaluation takes a few steps, on few rows where it names no data."""
    stage = "sft" if "finetune" in command else next((word for word in command if word in SHORT), None)
    more = SHORT[stage] if stage else ()
    if "finetune" in command or any(word.startswith("run.data=") for word in command):
        more = tuple(word for word in more if not word.startswith("data_prep."))
    return Forked([*command, *more], Path.cwd(), *rest)  # type: ignore[arg-type]


def run_page(without: tuple[str, ...] = ()) -> None:
    """Run the page's code in one namespace, but for blocks with some words."""
    names: dict[str, object] = {}
    for block in blocks(PAGE):
        if block.language == "python" and not any(word in block.text for word in without):
            exec(compile(block.text, block.place, "exec"), names)


def test_the_trainings_of_the_page_run(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(commands, "start", shortened)
    run_page(without=LATER)
    told = capsys.readouterr().out
    assert "super3-sft-model:v1" in told and "└── data: super3-pretrain-data:v1" in told
    assert "lr 0.001: valid loss " in told and "lr 0.003: valid loss " in told and "Interval(mean=" in told
    assert "unknown key 'optimizer.rate'" in told
    assert len(nemotron.artifact("sft").parents) == 2
    assert Store(here / "home").versions("super3-sft-model") == [1, 2, 3, 4, 5, 6, 7], "one, and six of the sweep"


@pytest.mark.slow
def test_all_code_of_the_page_runs(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(commands, "start", shortened)
    (here / "chats.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in CHATS))
    run_page()
    told = capsys.readouterr().out
    assert re.search(r"^after SFT: [01]\.\d+ \[.*\] of 24 sums$", told, re.MULTILINE)
    assert told.count(" -> ") == 2
    assert "super3-sft-model:v2 {'taught': {'before': " in told


def test_the_sweep_takes_ten_lines() -> None:
    (sweep,) = [one for one in blocks(PAGE) if one.language == "python" and "for seed in" in one.text]
    assert len([line for line in sweep.lines if line]) <= 10


def test_two_trainings_of_a_notebook_are_those_of_the_command(here: Path, run) -> None:
    train = [*command_line("super3", "sft"), *short("sft"), "optimizer.lr=1e-3"]
    run(*train, env={"NEMOTRON_HOME": str(here / "other")})
    config, *words = short("sft")[1:]
    settings = ({"optimizer.lr": 1e-3}, *words)
    made = [nemotron.train("sft", config, *settings, force=force, quiet=True) for force in (False, True)]
    assert [str(one) for one in made] == ["super3-sft-model:v1", "super3-sft-model:v2"]
    log, weights = made_in(here / "other", "super3-sft-model")
    assert [(one.path / "model.safetensors").read_bytes() == weights for one in made] == [True, True]
    assert made[1].metrics["loss"].to_pylist() == [line["loss"] for line in log if "loss" in line]
    # and either finds what the other has made
    assert "unchanged: using super3-sft-model:v2" in run(*train).stderr
    assert nemotron.train("sft", config, *settings, home=here / "other").reference == "super3-sft-model:v1"
    assert nemotron.dry_run("sft", config, *settings)["config"]["optimizer"]["lr"] == made[1].config["optimizer"]["lr"]


WAITING = """import signal, sys, time
if "stages.sft.train" in " ".join(sys.orig_argv):
    from nemotron_shared.system import console

    say = console.say

    def waiting(line):
        if "step 5/12" not in line:
            return say(line)
        came, handler = [], signal.getsignal(signal.SIGINT)
        signal.signal(signal.SIGINT, lambda *about: (came.append(about), handler(*about)))
        say(line)
        for _ in range(30_000):
            if came:
                break
            time.sleep(0.01)

    console.say = waiting
"""
"""Makes a training wait for the signal behind its fifth step, however late that comes."""


@pytest.mark.slow
def test_an_interrupted_training_goes_on_to_the_same_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the real start: a forked command passes no signals on."""
    (tmp_path / "sitecustomize.py").write_text(WAITING)
    tell = commands.tell

    def interrupted(line: str) -> None:
        tell(line)
        if "step 5/12" in line:
            raise KeyboardInterrupt

    def train(name: str) -> nemotron.Artifact:
        words = [*short("sft")[2:], "logger.log_interval=5", "train.train_iters=12", "train.eval_interval=12"]
        return nemotron.train("sft", "tiny", *last_values(words), home=tmp_path / name)

    whole = train("whole")
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(commands, "tell", interrupted)
        patched.setenv("PYTHONPATH", str(tmp_path), prepend=":")
        train("parts")
    assert "SIGINT: stopping" in capsys.readouterr().out
    parts = train("parts")
    assert "continuing from step" in capsys.readouterr().out
    assert (parts.path / "model.safetensors").read_bytes() == (whole.path / "model.safetensors").read_bytes()


@pytest.mark.parametrize(
    ("code", "kind"),
    [(130, KeyboardInterrupt), (0, KeyboardInterrupt), ("error: the disk is full", nemotron.UserError)],
)
def test_an_interrupt_is_passed_on_and_raised(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], code: int | str, kind: type[BaseException]
) -> None:
    """Also where the command ends well just then, so that a loop over calls ends; but no error is hidden."""
    program = f"""import signal, sys, time
signal.signal(signal.SIGINT, lambda number, frame: sys.exit({code!r}))
print("step 1", file=sys.stderr, flush=True)
time.sleep(60)"""
    tell = commands.tell

    def interrupted(line: str) -> None:
        tell(line)
        if line == "step 1":
            raise KeyboardInterrupt

    monkeypatch.setattr(commands, "start", instead(program))
    monkeypatch.setattr(commands, "tell", interrupted)
    with pytest.raises(kind):
        nemotron.train("sft", "tiny")
    assert capsys.readouterr().out.startswith("step 1\n")


def test_a_command_can_say_much_while_it_stops(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """More than a pipe holds, after an error that is none of the command's. The alarm ends one that waits for good."""
    program = f"""import pathlib, signal, sys, time
def stop(number, frame):
    print("x" * 300_000, file=sys.stderr, flush=True)
    pathlib.Path({str(tmp_path / "saved")!r}).touch()
    sys.exit(130)
signal.signal(signal.SIGTERM, stop)
signal.alarm(60)
print("step 1", file=sys.stderr, flush=True)
time.sleep(60)"""

    def broken(line: str) -> None:
        raise OSError("the notebook's output is closed")

    monkeypatch.setattr(commands, "start", instead(program))
    monkeypatch.setattr(commands, "tell", broken)
    with pytest.raises(OSError, match="output is closed"):
        nemotron.train("sft", "tiny")
    assert (tmp_path / "saved").exists()


def test_a_quiet_call_prints_warnings_alone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    said = "print('step 1\\n[data] WARNING: another file\\nstep 2', file=sys.stderr)"
    answer = {"config": {}}
    monkeypatch.setattr(commands, "start", instead(f"import sys; {said}; print({json.dumps(answer)!r})"))
    assert commands.answer_of(["--help"], quiet=True) == answer
    assert capsys.readouterr().out == "[data] WARNING: another file\n"
    commands.answer_of(["--help"], quiet=False)
    assert capsys.readouterr().out == "step 1\n[data] WARNING: another file\nstep 2\n"


def instead(program: str) -> Callable[..., subprocess.Popen[bytes]]:
    """A start of another program instead."""

    def start(command: list[str], environment: dict[str, str], stdout: object, stderr: object) -> subprocess.Popen:
        return subprocess.Popen([sys.executable, "-c", program], stdout=stdout, stderr=stderr)  # type: ignore[call-overload]

    return start


@pytest.mark.parametrize(
    ("program", "kind", "said"),
    [
        ("import sys; sys.exit('error: one\\n  do this\\nerror: it ended with exit code 2')", nemotron.UserError,
         "one\n  do this\nerror: it ended with exit code 2"),
        ("1/0", RuntimeError, "ZeroDivisionError: division by zero"),
        ("import os; os.kill(os.getpid(), 9)", nemotron.UserError, "killed by SIGKILL"),
        ("import sys; print('step 3\\nstopped after step 3\\n  run it again', file=sys.stderr); sys.exit(130)",
         nemotron.UserError, "stopped after step 3\n  run it again"),
    ],
)  # fmt: skip
def test_what_went_wrong_is_raised(
    monkeypatch: pytest.MonkeyPatch, program: str, kind: type[Exception], said: str
) -> None:
    monkeypatch.setattr(commands, "start", instead(program))
    with pytest.raises(kind) as raised:
        nemotron.train("sft", "tiny", quiet=True)
    assert said in str(raised.value)


@pytest.mark.parametrize("program", ["1/0", "print('{')\n1/0"])
def test_a_dry_run_that_crashes_raises_what_was_said(monkeypatch: pytest.MonkeyPatch, program: str) -> None:
    """Its exit code is the one of a dry run that found problems."""
    monkeypatch.setattr(commands, "start", instead(program))
    with pytest.raises(RuntimeError, match=r"--dry-run: exit code 1\n(?s:.*)ZeroDivisionError: division by zero"):
        nemotron.dry_run("sft", "tiny")


def test_the_working_folder_hides_no_package_from_the_command(tmp_path: Path) -> None:
    """Not forked: the real start."""
    (tmp_path / "click.py").write_text("raise SystemExit('the wrong click')")
    program = "import nemotron\ntry:\n    nemotron.train('sft', 'nothing')\nexcept nemotron.UserError as error:\n"
    program += "    print('raised', error.remedy)"
    command = [sys.executable, "-P", "-c", program]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert "raised there are: " in done.stdout and not done.stderr


def test_an_interval_is_students() -> None:
    assert pytest.approx([t.ppf(0.975, degrees) for degrees in range(1, 31)], abs=5e-5) == QUANTILES
    values = [0.50, 0.53, 0.52, 0.55]
    low, high = t.interval(0.95, 3, loc=np.mean(values), scale=np.std(values, ddof=1) / 2)
    assert nemotron.interval(values) == pytest.approx((0.525, low, high), abs=1e-5)


def test_the_import_is_light() -> None:
    heavy = ("torch", "transformers", "pyarrow", "numpy", "hydra", "click", "rich")
    program = f"import sys, nemotron; print([name for name in {heavy} if name in sys.modules])"
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout == "[]\n"
