"""Two runs of one step: one of them makes the result, however close together they come."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support import short

from nemotron_shared.runtime import step as step_module
from nemotron_shared.runtime.arguments import Arguments
from nemotron_shared.runtime.plan import make_plan
from stages.rl.data_prep import STEP


def test_a_run_that_waited_for_the_lock_uses_what_was_made_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NEMOTRON_HOME", str(tmp_path))
    arguments = Arguments("tiny", short("rl")[2:], False, False)
    made, reused = STEP.make(arguments)
    assert (made.reference, reused) == ("super3-rl-data:v1", False)

    def planned_before(*args: Any) -> Any:
        return replace(make_plan(*args), finished=None)

    monkeypatch.setattr(step_module, "make_plan", planned_before)
    assert STEP.make(arguments) == (made, True)
