"""What a new run says of the one before it."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from nemotron_shared.artifacts import Store
from nemotron_shared.artifacts.housekeeping import INPUTS
from nemotron_shared.engine.spec import Task
from nemotron_shared.step.attempts import _why_new, began_otherwise
from nemotron_shared.step.records import listed
from nemotron_shared.system.errors import UserError
from nemotron_shared.tracking.run import WHAT, Run
from nemotron_shared.tracking.segments import Segment, write_segments


def recorded(folder: Path, what: dict[str, Any], modules: dict[str, str], state: str = "finished") -> None:
    folder.mkdir()
    (folder / WHAT).write_text(json.dumps({"what": what, "modules": modules}))
    if state == "unfinished":
        (folder / INPUTS).write_text("[]")


def task(folder: Path, what: dict[str, Any], modules: dict[str, str] | None = None, **run: Any) -> Task[Any]:
    config: Any = SimpleNamespace(run=SimpleNamespace(**({"force": False, "on_change": "continue"} | run)))
    name = "super3-sft-model"
    return Task(config, {}, Run(folder, name), Store(folder), name=name, what=what, modules=modules or {})


@pytest.mark.parametrize("state", ["finished", "unfinished"])
def test_a_run_that_was_stopped_before_its_first_checkpoint_is_not_called_finished(tmp_path: Path, state: str) -> None:
    recorded(tmp_path / "super3-sft-model-0123", {"optimizer.lr": 1}, {"a": "b"}, state)
    why = _why_new(task(tmp_path / "super3-sft-model-4567", {"optimizer.lr": 2}, {"a": "b"}))
    assert why == f"a new run, not the {state} super3-sft-model-0123: optimizer.lr 1 -> 2"


def test_a_run_whose_code_has_changed_is_compared_with_the_one_in_its_own_folder(tmp_path: Path) -> None:
    recorded(tmp_path / "super3-sft-model-0123", {"optimizer.lr": 1}, {"stages.sft.encode": "old"})
    recorded(tmp_path / "super3-sft-model-4567", {"optimizer.lr": 2}, {})  # newer, and another result
    why = _why_new(task(tmp_path / "super3-sft-model-0123", {"optimizer.lr": 1}, {"stages.sft.encode": "new"}))
    assert why == "made again, because it differs from the finished super3-sft-model-0123: code of stages.sft.encode"


@pytest.mark.parametrize(("state", "is_told"), [("finished", False), ("unfinished", True)])
def test_a_finished_run_about_something_else_is_not_compared(tmp_path: Path, state: str, is_told: bool) -> None:
    recorded(tmp_path / "super3-sft-model-0123", {"optimizer.lr": 1, "input model": "a"}, {}, state)
    why = _why_new(task(tmp_path / "super3-sft-model-4567", {"optimizer.lr": 2, "input model": "b"}))
    assert (why is not None) is is_told


def test_other_sources_are_counted_and_the_first_is_named() -> None:
    found = ["a 1 -> 2", *(f"source raw/{n}.jsonl 1 -> 2" for n in range(400))]
    assert listed(found) == "a 1 -> 2; source raw/0.jsonl 1 -> 2 and 399 more sources"


BEGAN = "super3-sft-model-0123"


def starting(folder: Path, what: dict[str, Any], **run: Any) -> Task[Any]:
    return task(folder / "super3-sft-model-4567", what, **run)


@pytest.mark.parametrize("older", [{}, {"rule of weight decay": "by names"}])
def test_an_unfinished_run_under_another_rule_is_named(tmp_path: Path, older: dict[str, str]) -> None:
    recorded(tmp_path / BEGAN, {"optimizer.lr": 1} | older, {}, "unfinished")
    recorded(tmp_path / "super3-sft-model-89ab", {"optimizer.lr": 2}, {}, "unfinished")
    what = {"optimizer.lr": 1, "rule of weight decay": "by role"}
    said = began_otherwise(starting(tmp_path, what))
    was = older.get("rule of weight decay", "(none)")
    assert said is not None
    assert said.startswith(
        f"a new run, because the unfinished {BEGAN} began under another rule, weight decay {was} -> by role: "
    )
    refusing = starting(tmp_path, what, on_change="refuse")
    with pytest.raises(UserError, match=f"{BEGAN}: an unfinished run that began under another rule, weight decay"):
        began_otherwise(refusing)


@pytest.mark.parametrize(
    ("what", "state"),
    [
        ({"optimizer.lr": 1}, "finished"),
        ({"optimizer.lr": 2}, "unfinished"),
        ({"optimizer.lr": 1, "rule of weight decay": "by role"}, "unfinished"),
    ],
)
def test_other_runs_are_not_taken_for_one_under_another_rule(tmp_path: Path, what: dict[str, Any], state: str) -> None:
    recorded(tmp_path / BEGAN, what, {}, state)
    assert began_otherwise(starting(tmp_path, {"optimizer.lr": 1, "rule of weight decay": "by role"})) is None


def test_a_run_that_goes_on_with_other_processes_says_that_its_bytes_are_other_ones(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def on(*processes: int, step: int = 3) -> str:
        write_segments(tmp_path, [Segment("now", None, {}, {}, {"processes": one}) for one in processes])
        Run(tmp_path, "super3-sft-model").goes_on_from(step)
        return capsys.readouterr().err

    said = "{} processes before, {} now: the result has other bytes than an undisturbed run"
    assert said.format(2, 1) in on(2, 1) and said.format(2, 1) in on(2, 1, 1) and said.format(1, 4) in on(1, 4)
    for same in (on(2, 2), on(1), on(2, 1, step=0)):
        assert "continuing from step" in same and "bytes" not in same
