"""The campaign of killed trainings: it kills, it continues, and it notices what comes out differently."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from nemotron_app.main import main
from nemotron_prove.resume.batches import differing_step

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="what a killed training leaves is found with Linux")
# A training without a model, whose state follows from the state before; with "lies", not after it was continued.
PROGRAM = """
import hashlib, json, os, sys, time
from itertools import repeat
from pathlib import Path
import torch
from nemotron_prove.faults import parts, pieces
from nemotron_prove.faults.bench import EMPTY, Bench, Target
from nemotron_prove.faults.child import Command, adopt_orphans
from nemotron_prove.resume.campaign import run_campaign
from nemotron_prove.resume.trainings import Training
from nemotron_shared.artifacts import Store
from nemotron_shared.runtime.checkpoints import resume_point, step_of
from nemotron_shared.runtime.progress import Progress
from nemotron_shared.runtime.stop import end_on_sigterm

STEPS = 5

class Step:
    directory = Path(".")

    def main(self):
        end_on_sigterm()
        rank = int(os.environ.pop("RANK", 0))
        os.environ.pop("WORLD_SIZE", None)
        if rank:
            time.sleep(1)
            return 0
        store = Store.open()
        if pieces._finished(store, "x"):
            return 0
        with pieces._opened(store, "x") as run:
            point = resume_point(run.checkpoints, pieces.LAYOUT, run.say)
            state, first = ((point / "state.bin").read_bytes(), step_of(point)) if point else (b"", 0)
            if point:
                run.goes_on_from(first)
                state += b"x" * ("lies" in sys.argv)
            progress = Progress(run, 1)
            progress.start(first, STEPS, None)
            for step in range(first + 1, STEPS + 1):
                time.sleep(0.03)
                state = hashlib.sha256(state).digest()
                progress.log(step, {"loss": state[0] / 256}, None)
                pieces._checkpoint(run, step, state)
            (run.fresh_output() / "state.bin").write_bytes(state)
            (run.output / "metrics.jsonl").write_bytes(run.metrics.path.read_bytes())
            pieces._published(store, run, "x")
            return 0

adopt_orphans()
sys.modules["training"] = sys.modules["__main__"]
STEP = Step()
place = Path(sys.argv[1])
(place / "bases" / EMPTY).mkdir(parents=True)
for words in ((), ("lies",)):
    training = Training(Target("x", Command("training", words), pieces.NAME), STEPS, "x")
    found = run_campaign(1, Bench(place), [1, 2], 4, lambda life: None, lambda *seed: repeat(training))
    print(json.dumps(found.as_json()))
"""


def test_kills_are_made_and_what_differs_after_them_is_found(tmp_path: Path) -> None:
    """About 8 s of CPU time, most of it to import torch."""
    command = [sys.executable, "-c", PROGRAM, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    honest, lying = map(json.loads, done.stdout.splitlines())
    hits = [(life["processes"], hit) for life in honest["lives"] for hit in life["hits"]]
    assert honest["kills"] == len(hits) == 8
    assert {processes for processes, _ in hits} == {1, 2}
    assert any(hit["rank"] is not None for _, hit in hits)
    assert any(hit["start"] > 0 or hit["last"] > 1 for _, hit in hits), "some came after a checkpoint"
    assert honest["differing"] == 0, [life["differing"] for life in honest["lives"]]
    differing = [line for life in lying["lives"] for line in life["differing"]]
    assert lying["differing"] and any("step" in line and "loss" in line for line in differing), differing


def test_steps_that_were_trained_on_something_else_are_found() -> None:
    whole = {0: ["a", "b"], 1: ["c", "d"], 2: ["e", "f"]}
    assert differing_step(whole, {1: ["c", "d"], 2: ["e"]}) is None, "the last one was cut off"
    assert differing_step(whole, {1: ["c"], 2: ["e"]}) == 2
    assert differing_step(whole, {1: ["d", "c"]}) == 2
    assert differing_step(whole, {3: ["g"]}) == 4


def test_a_number_without_its_option_is_one_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["prove", "resume", "--kills", "1", "2"]) == 2
    assert "say: --processes 2" in capsys.readouterr().err


@pytest.mark.slow
def test_killed_trainings_on_one_and_two_processes_are_exact(tmp_path: Path) -> None:
    """About 150 s of CPU time."""
    words = ["prove", "resume", "--seed", "3", "--kills", "4", "--processes", "1", "2", "--json"]
    done = subprocess.run(
        [sys.executable, "-m", "nemotron_app.main", *words],
        capture_output=True, text=True, check=False, env=os.environ | {"TMPDIR": str(tmp_path)},
    )  # fmt: skip
    assert done.stdout, done.stderr
    found = json.loads(done.stdout)
    assert (found["kills"], found["differing"], done.returncode) == (8, 0, 0), done.stderr
    killed = [life for life in found["lives"] if life["hits"]]
    assert all(life["compared"]["files of the last state"] for life in killed)
    assert all(life["compared"]["passes"] for life in killed)
