"""The real NeMo Evaluator against lm-eval: the same model and rows give the same answers.

Needs the environment of the group `evaluator`; its folder of programs is given as NEMOTRON_EVALUATOR:

    NEMOTRON_EVALUATOR=/opt/evaluator/bin pytest -m evaluator stages/eval
"""

import json
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from evaluator_support import tiny_model
from support import last_values, last_values_win

from stages.eval import train

main = last_values_win(train.main)
pytestmark = pytest.mark.evaluator

ROWS = 200
ASKED = ("-c", "tiny", f"evaluation.limit={ROWS}", "evaluation.max_new_tokens=12", "data_prep.synthetic_problems=200",
         "data_prep.synthetic_choices=100", "data_prep.synthetic_texts=30", "run.base=null", "run.sft=null",
         "evaluation.random_baseline=false")  # fmt: skip


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model; the user's home is another one."""
    folder = tmp_path_factory.mktemp("agreement")
    (folder / "home").mkdir()
    tiny_model(folder / "model")
    return folder


@pytest.fixture
def asked(place: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setenv("HOME", str(place / "home"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    return [*ASKED, f"run.home={place}/store", f"run.model={place}/model"]


def with_evaluator() -> list[str]:
    programs = os.environ["NEMOTRON_EVALUATOR"]
    return ["engine=nemo_evaluator", f"engine.evaluator={programs}/nemo-evaluator"]


def samples(place: Path, version: int, task: str) -> list[dict[str, Any]]:
    files = sorted((place / "store" / "artifacts" / "super3-eval-results" / f"v{version}").rglob(f"{task}.jsonl"))
    return [json.loads(line) for line in files[0].read_text().splitlines()]


def test_both_engines_give_the_same_answers(place: Path, asked: list[str]) -> None:
    assert main(asked) == 0
    before = {path.name for path in (place / "home").iterdir()}
    assert main([*asked, *with_evaluator()]) == 0
    assert {path.name for path in (place / "home").iterdir()} == before, "the harness leaves nothing in the user's home"
    here, there = ({task: samples(place, version, task) for task in ("sums", "facts", "prose")} for version in (1, 2))
    assert len(here["sums"]) == ROWS
    assert len({sample["output"] for sample in here["sums"]}) > 20, "answers that are all alike would prove nothing"
    assert here["sums"] == there["sums"]
    _same_likelihoods(here["facts"], there["facts"])
    for ours, theirs in zip(here["prose"], there["prose"], strict=True):
        assert ours["bytes"] == theirs["bytes"]
        # lm-eval sums a text's hundreds of tokens in float32, its fork in float64
        assert ours["bits"] == pytest.approx(theirs["bits"], rel=1e-6)


def _same_likelihoods(here: list[dict[str, Any]], there: list[dict[str, Any]]) -> None:
    for ours, theirs in zip(here, there, strict=True):
        pairs = zip(ours.pop("log_likelihoods"), theirs.pop("log_likelihoods"), strict=True)
        assert max(abs(one - other) for one, other in pairs) < 1e-5
        assert ours == theirs


def test_a_stop_leaves_nothing_behind_and_the_same_command_finishes(place: Path, asked: list[str]) -> None:
    few = ["evaluation.limit=6", "evaluation.tasks=[sums]", *with_evaluator()]
    command = [sys.executable, "-m", "stages.eval.train", *last_values([*asked, *few])]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    said = ""
    while "serving the model at http" not in said:
        line = process.stderr.readline()
        assert line, said
        said += line
    url = said.split("serving the model at ")[1].split()[0]
    time.sleep(3)
    process.send_signal(signal.SIGTERM)
    assert process.wait(90) == 130
    assert not [one for one in Path("/proc").glob("[0-9]*/cmdline") if url.encode() in _read(one)]
    assert subprocess.run(command, check=False, capture_output=True).returncode == 0


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:  # the process ended meanwhile
        return b""


def test_a_server_of_the_users_is_asked(place: Path, asked: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    from evaluator_support import config_of

    from nemotron_engines.modeling.build import load_model, load_tokenizer
    from stages.eval.engines.nemo_evaluator.ask import served

    model, tokenizer = load_model(place / "model", config_of("tiny").engine), load_tokenizer(place / "model")
    few = ["evaluation.limit=6", "evaluation.tasks=[facts]"]
    monkeypatch.setenv("THEIR_KEY", "a-key-of-this-test")
    with served(model.eval(), tokenizer, name="theirs", batch_size=8, key="a-key-of-this-test") as url:
        theirs = [f"engine.endpoint={url}", "engine.served_model_name=theirs", "engine.api_key_name=THEIR_KEY"]
        assert main([*asked, *few, *with_evaluator(), *theirs]) == 0
    newest = max((place / "store" / "artifacts" / "super3-eval-results").glob("v*"), key=lambda one: int(one.name[1:]))
    assert math.isfinite(json.loads((newest / "results.json").read_text())["scores"][0]["value"])
    assert main([*asked, *few, *with_evaluator(), *theirs, "--force"]) == 2, "the server is gone"
