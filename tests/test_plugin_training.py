"""An engine and a stage from outside the repository at work: one records what it would train, the other makes data."""

import importlib
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from plugin_support import PLUGIN, write_entry_points
from serving_support import planned
from support import make_model, write_model

from nemotron_app.main import main
from nemotron_data.formats.packed import read_packed
from nemotron_engines.rows import PackedRows
from nemotron_serving.api import Api
from nemotron_serving.model import ready
from nemotron_serving.server import serving
from nemotron_shared.artifacts import Artifact, Store
from nemotron_shared.config import compose, registry
from nemotron_shared.stages import STAGES
from nemotron_shared.system.errors import UserError
from stages.sft import data_prep, train
from stages.sft.train import main as sft

SHORT = ("-c", "tiny", "engine=recorder", "train.train_iters=3", "train.global_batch_size=4")
CHATS = ("data_prep.synthetic_chats=60", "data_prep.workers=1")


@pytest.fixture(autouse=True)
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    """An empty store, in a process in which the package is installed."""
    write_entry_points(tmp_path / "site")
    monkeypatch.setenv("NEMOTRON_HOME", str(tmp_path / "home"))
    for folder in (PLUGIN, tmp_path / "site"):
        monkeypatch.syspath_prepend(str(folder))
    known = (registry.installed, compose.shared_groups)
    for found in known:
        found.cache_clear()
    yield Store(tmp_path / "home")
    for found in known:
        found.cache_clear()


def record_of(made: Artifact) -> dict[str, Any]:
    return json.loads((made.path / "record.json").read_text())


def test_the_recorder_writes_down_what_would_be_trained_and_publishes_its_model(store: Store, tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    write_model(tmp_path / "model")
    assert sft([*SHORT, *CHATS, f"run.model={tmp_path / 'model'}"]) == 0
    made, data = store.resolve("super3-sft-model"), store.resolve("super3-sft-data")
    assert (made.path / "model.safetensors").read_bytes() == (tmp_path / "model/model.safetensors").read_bytes()
    recorded, rows = record_of(made), read_packed(data.path / "train.parquet")
    assert recorded["config"]["train"]["train_iters"] == 3 and recorded["rows"] == len(rows)
    assert [step["step"] for step in recorded["steps"]] == [1, 2, 3]
    for step in recorded["steps"]:
        taken = [rows[number] for number in step["rows"]]
        assert len(taken) == 4
        assert step["tokens"] == sum(len(row.input_ids) for row in taken) > step["learnt"] > 0
    assert made.manifest.metadata["tokens"] == sum(step["tokens"] for step in recorded["steps"])
    taken = PackedRows(rows, 3 * 4, recorded["config"]["run"]["seed"])
    assert [number for step in recorded["steps"] for number in step["rows"]] == [
        next(number for number, row in enumerate(rows) if row is taken[index]) for index in range(len(taken))
    ]


def test_a_stage_from_outside_has_a_name_of_its_own() -> None:
    step = importlib.import_module("nemotron_toy.harvest.train").STEP
    with pytest.raises(UserError, match="its stage is called 'sft', and its folder 'harvest'"):
        replace(step, outside=STAGES["sft"])
    with pytest.raises(UserError, match="there is a stage 'sft' already"):
        replace(step, script=train.__file__, outside=STAGES["sft"])


def test_the_recorder_refuses_to_start_from_random_weights(store: Store, capfd: pytest.CaptureFixture[str]) -> None:
    assert sft([*SHORT, *CHATS]) == 2
    assert "run.model: engine=recorder publishes a copy of the model that it is given" in capfd.readouterr().err
    assert not store.versions("super3-sft-data")


def begin(words: str, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Write the package of `nemotron new`, and install it."""
    monkeypatch.chdir(place)
    assert main(["new", *words.split()]) == 0
    _, name, *_ = words.split()
    write_entry_points(place / "site", place / name)
    monkeypatch.syspath_prepend(str(place / name))
    registry.installed.cache_clear()
    compose.shared_groups.cache_clear()


def test_the_format_that_new_writes_reads_its_rows(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin("format dialogs", tmp_path, monkeypatch)
    importlib.import_module("runpy").run_path("dialogs/dialogs.py", run_name="__main__")
    words = ("data_prep.source=dialogs/rows.jsonl", "data_prep.format=dialogs", "data_prep.workers=1")
    assert data_prep.main(["-c", "tiny", *words]) == 0
    assert store.resolve("super3-sft-data").manifest.metadata["splits"]["train"]["conversations"] == 2


def test_the_engine_that_new_writes_publishes_its_model(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    begin("engine first_try sft", tmp_path, monkeypatch)
    (tmp_path / "model").mkdir()
    write_model(tmp_path / "model")
    words = ("-c", "tiny", "engine=first_try", *CHATS)
    assert sft(list(words)) == 2
    assert "run.model: engine=first_try needs a model to begin with" in capfd.readouterr().err
    assert sft([*words, "run.name=first_try", f"run.model={tmp_path / 'model'}"]) == 0
    assert json.loads((store.resolve("first_try-sft-model").path / "note.json").read_text())["note"] == "hello"
    assert not store.versions("super3-sft-model")


QUESTIONS = {"What is 3+4?": "7", "What is 5+2?": "7", "What is 6+1?": "7", "What is 2+2?": "4"}


@pytest.fixture
def questions(tmp_path: Path) -> str:
    """The word that names a file of questions."""
    rows = ({"question": question, "expected_answer": answer} for question, answer in QUESTIONS.items())
    (tmp_path / "questions.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return f"harvest.prompts={tmp_path / 'questions.jsonl'}"


def harvest(*words: str) -> int:
    return importlib.import_module("nemotron_toy.harvest.train").main(["-c", "tiny", *words])


def test_the_stage_keeps_the_answers_of_a_served_model_that_a_reward_accepts(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, questions: str, capfd: pytest.CaptureFixture[str]
) -> None:
    make_model(tmp_path / "model")
    artifact = Artifact.external(tmp_path / "model")
    words = (questions, "engine.model=served", "harvest.answers=3", "harvest.sft_settings=[data_prep.workers=1]")
    with (
        ready(artifact, device="cpu", size=4, slow_kernels=False) as model,
        serving(Api(model, ("served",), 20).app(None)) as url,
    ):
        planned(model, monkeypatch, "<think>it is 7</think>7")
        assert harvest(*words, f"engine.url={url}/v1") == 0
    made = store.resolve("super3-harvest-data")
    answers = [json.loads(line) for line in (made.path / "answers.jsonl").read_text().splitlines()]
    assert {row["question"]: row["expected"] for row in answers} == QUESTIONS
    assert {len(row["answers"]) for row in answers} == {3}
    kept = [json.loads(line)["messages"] for line in (made.path / "kept.jsonl").read_text().splitlines()]
    assert [asked["content"] for asked, _ in kept] == [one for one, answer in QUESTIONS.items() if answer == "7"]
    assert [said for _, said in kept] == 3 * [{"role": "assistant", "reasoning_content": "it is 7", "content": "7"}]
    counts = {"answers": 12, "kept": 3, "said before": 6, "below the threshold": 3}
    assert made.manifest.metadata["harvest"] == counts

    assert harvest(*words) == 0, "a finished result needs no server"
    assert store.versions("super3-harvest-data") == [1]
    assert sft([*SHORT, "run.data=super3-harvest-data", f"run.model={tmp_path / 'model'}"]) == 0
    learnt = store.resolve("super3-sft-model")
    assert [parent.reference for parent in learnt.manifest.parents] == ["super3-harvest-data:v1"]
    assert record_of(learnt)["sequences"] == made.manifest.metadata["splits"]["train"]["conversations"]

    (made.path / "kept.jsonl").write_text("")
    capfd.readouterr()
    assert harvest(*words) == 2
    assert "make it again: python -m nemotron_toy.harvest.train -c tiny" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("harvest.reward=stric",), "did you mean 'strict'?"),
        (("harvest.reward=model",), "given by more than the text of an answer"),
        ((), "engine.model is null"),
        (("harvest.sft_settings=[data_prep.tokenizer.model=/nowhere]",), "its tokenizer /nowhere is no folder"),
        (("engine.model=served", "engine.url=http://127.0.0.1:9/v1"), "start the server"),
    ],
)
def test_the_stage_says_what_it_lacks_before_it_asks(
    questions: str, words: tuple[str, ...], told: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert harvest(questions, *words) == 2
    assert told in capfd.readouterr().err


def test_a_stopped_run_of_the_stage_goes_on_after_its_last_whole_line(tmp_path: Path) -> None:
    whole_lines = importlib.import_module("nemotron_toy.harvest.engine").whole_lines
    file = tmp_path / "answers.jsonl"
    assert whole_lines(file) == 0
    file.write_text('{"question": "2+2?"}\n{"question": "3+')
    assert whole_lines(file) == 1
    assert file.read_text() == '{"question": "2+2?"}\n'
