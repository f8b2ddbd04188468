"""What a run tells of its steps: every step's figures in metrics.jsonl, some of them on the console."""

from pathlib import Path

import pytest

from nemotron_shared.system.console import CLEAR, from_here, renew, tell
from nemotron_shared.system.errors import UserError
from nemotron_shared.system.program import exit_code_of
from nemotron_shared.tracking import progress
from nemotron_shared.tracking.progress import Progress
from nemotron_shared.tracking.run import Run


class Clock:
    """Time that stands still until a test moves it."""

    now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(progress, "time", made)
    return made


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path, "pretrain")


def test_figures_speed_and_time_left_count_from_where_training_continues(
    run: Run, clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    told = Progress(run, log_interval=2)
    told.start(4, last=10, tokens=400)
    clock.now += 20
    told.log(6, {"loss": 3.25, "grad_norm": 1.5, "lr": 0.001}, tokens=600)
    assert capsys.readouterr().err == "[pretrain] step 6/10  loss 3.25  lr 0.001  10 tokens/s  0:40 left\n"
    timing = {"seconds": 20.0, "tokens": 600, "tokens_per_second": 10.0}
    entry = run.metrics.read()[0]
    assert entry.pop("memory_gb") > 0
    assert entry == {"step": 6, "loss": 3.25, "grad_norm": 1.5, "lr": 0.001} | timing


def test_every_step_is_kept_and_some_are_shown(run: Run, clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    told = Progress(run, log_interval=3)
    told.start(0, last=7, tokens=None)
    for step in range(1, 8):
        told.log(step, {"loss": 1.0}, tokens=None)
        if step == 5:
            told.log(step, {"valid_loss": 2.0}, tokens=None)
    shown = [line.split("  ")[0] for line in capsys.readouterr().err.splitlines()]
    assert shown == [f"[pretrain] step {step}/7" for step in (3, 5, 6, 7)]
    entries = run.metrics.read()
    assert [entry["step"] for entry in entries] == [1, 2, 3, 4, 5, 5, 6, 7]
    assert {key for entry in entries for key in entry} == {"step", "loss", "valid_loss", "seconds", "memory_gb"}


def test_slow_steps_are_shown_although_their_interval_is_long(
    run: Run, clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    told = Progress(run, log_interval=100)
    told.start(0, last=50, tokens=None)
    for step in range(1, 10):
        clock.now += 1.0
        told.log(step, {"loss": 1.0}, tokens=None)
    shown = [line.split("  ")[0] for line in capsys.readouterr().err.splitlines()]
    assert shown == ["[pretrain] step 4/50", "[pretrain] step 8/50"]
    assert progress.QUIET_SECONDS < progress.SECONDS  # which would name the same step without its figures


def test_what_a_killed_run_logged_beyond_its_checkpoint_is_forgotten(run: Run, clock: Clock) -> None:
    for step in (1, 2, 3):
        run.metrics.append(step, loss=1.0)
    Progress(run, log_interval=1).start(2, last=9, tokens=20)
    assert [entry["step"] for entry in run.metrics.read()] == [1, 2]


def test_a_terminal_shows_one_line_that_renews_itself(
    run: Run, clock: Clock, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    told = Progress(run, log_interval=1)
    told.start(0, last=2, tokens=None)
    told.log(1, {"loss": 1.0}, tokens=None)
    told.log(2, {"loss": 1.0}, tokens=None)
    run.say("stopped")
    first, second, third = capsys.readouterr().err.split(CLEAR)[1:]
    assert "step 1/2" in first
    assert "\n" not in first
    assert second.endswith("left\n")
    assert third == "[pretrain] stopped\n"


def test_what_is_said_takes_the_place_of_a_line_that_renews_itself(
    run: Run, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    renew("step 1/9")
    run.say("stopped after step 1")
    assert capsys.readouterr().err == f"{CLEAR}step 1/9{CLEAR}[pretrain] stopped after step 1\n"


@pytest.mark.parametrize(
    ("columns", "shown"),
    [
        (120, "[super3-rl-model] ━━━━━━━━━━──────────  step 450/900  loss 0.0123  reward 0.5  lr 0.003"
              "  21,010 tokens/s  0:43 left"),
        (100, "[super3-rl-model] ━━━━━━━───────  step 450/900  loss 0.0123  reward 0.5  21,010 tokens/s  0:43 left"),
        (80, "━━━━━━──────  step 450/900  loss 0.0123  reward 0.5  21,010 tokens/s  0:43 left"),
        (70, "step 450/900  loss 0.0123  reward 0.5  21,010 tokens/s  0:43 left"),
        (60, "step 450/900  loss 0.0123  reward 0.5  0:43 left"),
        (40, "step 450/900  loss 0.0123  reward 0.5 …"),
    ],
)  # fmt: skip
def test_the_line_that_renews_itself_fits_the_terminal(
    run: Run, clock: Clock, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], columns: int,
    shown: str,
) -> None:  # fmt: skip
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", str(columns))
    told = Progress(Run(run.directory, "super3-rl-model"), log_interval=1)
    told.start(0, last=900, tokens=0)
    clock.now += 43
    told.log(450, {"loss": 0.0123, "reward": 0.5, "lr": 0.003}, tokens=43 * 21_010)
    assert capsys.readouterr().err == CLEAR + shown and len(shown) < columns


@pytest.mark.parametrize(
    ("raised", "said"),
    [
        (UserError("no disk"), "error: no disk\n"),
        (KeyboardInterrupt("nothing was begun"), "interrupted; nothing was begun\n"),
    ],
)
def test_an_error_takes_the_place_of_a_line_that_renews_itself(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], raised: BaseException, said: str
) -> None:
    def fail() -> None:
        renew("step 1/9")
        raise raised

    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    exit_code_of(fail)
    shown = capsys.readouterr().err
    assert shown.startswith(f"{CLEAR}step 1/9{CLEAR}") and shown.endswith(said)
    tell("a result")
    assert capsys.readouterr().err == "", "nothing is left to clear"
    renew("step 2/9")
    tell("a result")
    assert capsys.readouterr().err == f"{CLEAR}step 2/9{CLEAR}"


def test_a_path_is_relative_on_a_terminal_below_the_working_folder_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    inside, outside = tmp_path / "runs" / "one", tmp_path.parent / "other"
    assert from_here(inside) == str(inside), "a log is read elsewhere"
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    assert (from_here(inside), from_here(outside)) == ("runs/one", str(outside))


def test_a_step_is_logged_with_the_memory_that_is_held(tmp_path: Path) -> None:
    run = Run(tmp_path, "run")
    progress = Progress(run, log_interval=1)
    progress.start(0, 2, tokens=None)
    progress.log(1, {"loss": 2.0}, tokens=None)
    held = bytearray(300_000_000)
    held[::4096] = b"x" * len(held[::4096])  # a page counts once it is written to
    progress.log(2, {"loss": 1.0}, tokens=None)
    first, second = (entry["memory_gb"] for entry in run.metrics.read())
    assert 0.005 < first < second - 0.25 and second < 100
