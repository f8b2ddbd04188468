"""What is said of a step that the system killed, and what is kept for one that has not come up yet."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest
from store_support import MODEL, publish

from nemotron_app.launch import KILLED_EXIT_CODE, run_process, step_process
from nemotron_app.request import Request
from nemotron_shared.artifacts import Reference, Store
from nemotron_shared.artifacts.housekeeping import remove
from nemotron_shared.artifacts.starting import FOLDER
from nemotron_shared.system.errors import UserError

KILLS_ITSELF = "import os, sys; os.kill(os.getpid(), int(sys.argv[1]))"


@pytest.mark.parametrize(
    ("module", "number", "remedy"),
    [
        ("stages.rl.train", 9, "run the same command again, with a smaller train.micro_batch_size if memory ran out"),
        ("stages.rl.train", 11, "run the same command again"),
        ("stages.rl.data_prep", 9, "run the same command again"),
        ("stages.eval.train", 9, "run the same command again"),
    ],
)
def test_a_training_without_memory_is_told_what_takes_less(
    capfd: pytest.CaptureFixture[str], module: str, number: int, remedy: str
) -> None:
    assert run_process([sys.executable, "-c", KILLS_ITSELF, str(number), module]) == KILLED_EXIT_CODE
    said = capfd.readouterr().err.splitlines()
    assert ("(out of memory?)" in said[0]) is (number == 9)
    assert said[1:] == [f"  what is saved is kept: {remedy}"]


def test_a_model_is_kept_from_the_moment_that_a_command_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its step takes seconds to come up, and would have started from random weights."""
    monkeypatch.setenv("NEMOTRON_HOME", str(tmp_path))
    store = Store.open()
    publish(store, {"a": "1"})
    request = Request("super3", ("rl",), "tiny", ("run.family=super3",), dry_run=False, json=False)
    with step_process("rl", "train", request), pytest.raises(UserError, match="is needed by a step that is starting"):
        remove(store, Reference(MODEL, 1))
    with step_process("rl", "train", replace(request, dry_run=True)):
        assert not list((tmp_path / FOLDER).glob("*.json"))
    assert remove(store, Reference(MODEL, 1)) == []
