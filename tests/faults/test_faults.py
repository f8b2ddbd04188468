"""The campaigns of faults and kills find nothing on a few cases, and notice what a step gets wrong."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from faults.attempts import differing_step
from faults.steps import compile_shim

FOLDER = Path(__file__).parent
pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or not shutil.which("cc"), reason="needs Linux's libc and a C compiler"
)


def run_python(*words: str, env: dict[str, str] | None = None) -> "subprocess.CompletedProcess[str]":
    environment = os.environ | {"PYTHONPATH": str(FOLDER.parent)} | (env or {})
    return subprocess.run([sys.executable, *words], capture_output=True, text=True, check=False, env=environment)


def outcomes_of(program: str, *words: str) -> list[dict[str, Any]]:
    done = run_python(str(FOLDER / program), *words, "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout)


@pytest.mark.slow
def test_faults_leave_nothing_wrong() -> None:
    """About 55 s of CPU time, most of it for the trainings."""
    cases = {"store": 60, "prepare": 10, "train": 3}
    names = [f"{part}-{number}" for part, count in cases.items() for number in range(1, count + 1)]
    outcomes = outcomes_of("campaign.py", "--seed", "1", "--only", *names)
    assert [one["case"] for one in outcomes] == names
    happened = [one["tried"] for one in outcomes if one["tried"]["happened"]]
    assert len(happened) > 62 and all(tried["finished"] for tried in happened)


@pytest.mark.slow
def test_killed_trainings_are_exact() -> None:
    """About 40 s of CPU time."""
    lives = outcomes_of("kills.py", "--seed", "3", "--kills", "2", "--processes", "2")
    killed = [life for life in lives if life["hits"]]
    assert sum(len(life["hits"]) for life in killed) == 2
    assert all(life["compared"]["files of the last state"] and life["compared"]["passes"] for life in killed)


# A step that reports success without making anything; what it finds it damages.
LIAR = """
import sys
from pathlib import Path
from faults import pieces
from faults.bench import Bench, Target
from faults.steps import Command, adopt_orphans
from faults.verdict import judge

class Liar:
    def main(self):
        for path in (bench.home / "artifacts").rglob("0.bin"):
            path.write_bytes(b"")
        return 0

adopt_orphans()
bench = Bench(Path(sys.argv[1]))
(bench.place / "bases" / "empty").mkdir(parents=True)
honest = Target("publish", Command(pieces.__name__, ("publish",)), pieces.NAME)
bench.measure(honest)
kept = bench.kept()
assert not judge(bench, honest, "nothing", [], kept).wrong
pieces.main = Liar().main
tried = judge(bench, honest, "a lie", [], kept)
print(tried.silent, tried.finished, tried.wrong)
(bench.home / "artifacts" / pieces.NAME / "v1" / "manifest.json").unlink()
print(judge(bench, honest, "a loss", [], kept).bytes_lost > 90_000)
"""


def test_a_step_that_lies_is_noticed(tmp_path: Path) -> None:
    done = run_python("-c", LIAR, str(tmp_path / "place"), env={"LD_PRELOAD": str(compile_shim(tmp_path))})
    assert done.stdout.splitlines() == ["True False ['the rerun made another result']", "True"], done.stderr


# A training without a model, whose state follows from the state before; with "lies", not after it was continued.
PROGRAM = """
import hashlib, os, sys, time
from itertools import repeat
from pathlib import Path
import torch
from faults import pieces
from faults.bench import EMPTY, Bench, Target
from faults.kills import Training, run_campaign
from faults.steps import Command, adopt_orphans
from nemotron_shared.artifacts import Store
from nemotron_shared.engine.checkpoints import resume_point, step_of
from nemotron_shared.tracking.progress import Progress
from nemotron_shared.system.stop import end_on_sigterm

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
        if pieces.finished(store, "x"):
            return 0
        with pieces.opened(store, "x") as run:
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
                pieces.checkpoint(run, step, state)
            (run.fresh_output() / "state.bin").write_bytes(state)
            (run.output / "metrics.jsonl").write_bytes(run.metrics.path.read_bytes())
            pieces.published(store, run, "x")
            return 0

adopt_orphans()
sys.modules["training"] = sys.modules["__main__"]
STEP = Step()
main = STEP.main
place = Path(sys.argv[1])
(place / "bases" / EMPTY).mkdir(parents=True)
for words in ((), ("lies",)):
    training = Training(Target("x", Command("training", words), pieces.NAME), STEPS, "x")
    lives = list(run_campaign(1, Bench(place), [1, 2], 4, lambda *seed: repeat(training)))
    hits = [(life.processes, hit) for life in lives for hit in life.hits]
    differing = [line for life in lives for line in life.differing]
    if words:
        assert any("step" in line and "loss" in line for line in differing), differing
    else:
        assert not differing, differing
        assert len(hits) == 8 and {processes for processes, _ in hits} == {1, 2}
        assert any(hit.rank is not None for _, hit in hits)
        assert any(hit.start > 0 or hit.last > 1 for _, hit in hits), "some came after a checkpoint"
"""


def test_a_training_that_continues_differently_is_noticed(tmp_path: Path) -> None:
    """About 8 s of CPU time, most of it to import torch."""
    done = run_python("-c", PROGRAM, str(tmp_path))
    assert done.returncode == 0, done.stderr


def test_steps_that_were_trained_on_something_else_are_found() -> None:
    whole = {0: ["a", "b"], 1: ["c", "d"], 2: ["e", "f"]}
    assert differing_step(whole, {1: ["c", "d"], 2: ["e"]}) is None, "the last one was cut off"
    assert differing_step(whole, {1: ["c"], 2: ["e"]}) == 2
    assert differing_step(whole, {1: ["d", "c"]}) == 2
    assert differing_step(whole, {3: ["g"]}) == 4


def test_a_case_that_does_not_exist_is_an_error() -> None:
    done = run_python(str(FOLDER / "campaign.py"), "--only", "shop-3")
    assert (
        done.returncode == 2 and "'shop-3' is not a case: give one of store, prepare, train and a number" in done.stderr
    )
