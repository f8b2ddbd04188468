"""What a new run says of the one before it."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from nemotron_shared.artifacts.housekeeping import INPUTS
from nemotron_shared.runtime.attempts import _listed, _say_why_new
from nemotron_shared.runtime.records import WHAT


@pytest.mark.parametrize("state", ["finished", "unfinished"])
def test_a_run_that_was_stopped_before_its_first_checkpoint_is_not_called_finished(tmp_path: Path, state: str) -> None:
    before = tmp_path / "super3-sft-model-0123"
    before.mkdir()
    (before / WHAT).write_text(json.dumps({"what": {"optimizer.lr": 1}, "modules": {"a": "b"}}))
    if state == "unfinished":
        (before / INPUTS).write_text("[]")
    said: list[str] = []
    identity = SimpleNamespace(what={"optimizer.lr": 2}, modules={"a": "b"})
    plan: Any = SimpleNamespace(name="super3-sft-model", identity=identity)
    run: Any = SimpleNamespace(directory=tmp_path / "super3-sft-model-4567", say=said.append)
    _say_why_new(plan, run)
    assert said == [f"a new run, not the {state} super3-sft-model-0123: optimizer.lr 1 -> 2"]


def test_other_sources_are_counted_and_the_first_is_named() -> None:
    found = ["a 1 -> 2", *(f"source raw/{n}.jsonl 1 -> 2" for n in range(400))]
    assert _listed(found) == "a 1 -> 2; source raw/0.jsonl 1 -> 2 and 399 more sources"
