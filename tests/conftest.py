"""Commands run as a user runs them: in an empty directory, with an artifact store of their own."""

import importlib
import json
import os
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from support import STAGES, can_be_forked, last_values, make_model, run_forked

from nemotron_shared.artifacts import Producer, Store

Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Run a command in an empty directory with its own artifact store, and capture what it says.

    Of several values for one key the last counts, because tests change what `short` says.
    """

    def call(*command: str, ok: bool = True, env: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        environment = os.environ | {"NEMOTRON_HOME": str(tmp_path / "home")} | dict(env or {})
        command = tuple(last_values(command))
        if can_be_forked(command):
            result = run_forked(command, tmp_path, environment)
        else:
            result = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
        if ok and result.returncode:
            raise AssertionError(f"{' '.join(command)}\nexit code {result.returncode}\n{result.stdout}{result.stderr}")
        return result

    return call


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store in which every artifact of super3 exists, for commands that look at what has been made."""
    store = Store.open(str(tmp_path_factory.mktemp("made")))
    for stage in STAGES:
        for verb in ("data_prep", "train"):
            step = importlib.import_module(f"stages.{stage}.{verb}").STEP
            if step.makes.type == "EvalResultsArtifact":
                continue
            folder = store.home / "work"
            folder.mkdir()
            (folder / "file").write_text(f"{stage} {verb}")
            if step.makes.type == "ModelArtifact":
                make_model(folder)
            if step.makes.type == "EvalDataArtifact":
                (folder / "sums.jsonl").write_text('{"question": "2 + 2", "expected_answer": "4"}\n')
                (folder / "tasks.json").write_text(json.dumps([{"name": "sums", "kind": "generate", "rows": 1}]))
            producer = Producer(stage, verb, "0", "0", "", "", None, f"python -m {step.module}", {})
            name = step.makes.name("super3")
            store.publish(folder, name=name, type=step.makes.type, fingerprint=name, producer=producer)
    store.set_alias("super3-sft-model", 1, "best")
    return store.home
