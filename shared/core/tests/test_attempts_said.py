"""What a new run says of the one before it."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from nemotron_shared.artifacts.housekeeping import INPUTS
from nemotron_shared.runtime.attempts import _why_new
from nemotron_shared.runtime.records import WHAT, listed


def recorded(folder: Path, what: dict[str, Any], modules: dict[str, str], state: str = "finished") -> None:
    folder.mkdir()
    (folder / WHAT).write_text(json.dumps({"what": what, "modules": modules}))
    if state == "unfinished":
        (folder / INPUTS).write_text("[]")


def planned(what: dict[str, Any], modules: dict[str, str]) -> Any:
    return SimpleNamespace(name="super3-sft-model", identity=SimpleNamespace(what=what, modules=modules))


@pytest.mark.parametrize("state", ["finished", "unfinished"])
def test_a_run_that_was_stopped_before_its_first_checkpoint_is_not_called_finished(tmp_path: Path, state: str) -> None:
    recorded(tmp_path / "super3-sft-model-0123", {"optimizer.lr": 1}, {"a": "b"}, state)
    why = _why_new(planned({"optimizer.lr": 2}, {"a": "b"}), tmp_path / "super3-sft-model-4567")
    assert why == f"a new run, not the {state} super3-sft-model-0123: optimizer.lr 1 -> 2"


def test_a_run_whose_code_has_changed_is_compared_with_the_one_in_its_own_folder(tmp_path: Path) -> None:
    recorded(tmp_path / "super3-sft-model-0123", {"optimizer.lr": 1}, {"stages.sft.encode": "old"})
    recorded(tmp_path / "super3-sft-model-4567", {"optimizer.lr": 2}, {})  # newer, and another result
    why = _why_new(planned({"optimizer.lr": 1}, {"stages.sft.encode": "new"}), tmp_path / "super3-sft-model-0123")
    assert why == "made again, because it differs from the finished super3-sft-model-0123: code of stages.sft.encode"


def test_other_sources_are_counted_and_the_first_is_named() -> None:
    found = ["a 1 -> 2", *(f"source raw/{n}.jsonl 1 -> 2" for n in range(400))]
    assert listed(found) == "a 1 -> 2; source raw/0.jsonl 1 -> 2 and 399 more sources"
