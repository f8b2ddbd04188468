"""What `import nemotron` gives, without a command: intervals, tables and artifacts of a store."""

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow
import pytest

import nemotron
from nemotron_app.notebook import functions
from nemotron_app.notebook.artifacts import table_of
from nemotron_app.notebook.functions import overrides_of
from nemotron_shared.artifacts import Producer, Store
from nemotron_shared.tracking.completions import Completion, CompletionsLog

PRODUCER = Producer("sft", "train", "0", "0", "ab" * 32, "", None, "python -m stages.sft.train -c tiny", {})


@pytest.mark.parametrize("values", [[], [1.0], [1.0] * 32, [1.0, math.nan]])
def test_an_interval_of_too_few_or_odd_values_is_refused(values: list[float]) -> None:
    with pytest.raises(nemotron.UserError, match="an interval of"):
        nemotron.interval(values)


def test_a_table_has_the_columns_of_all_rows() -> None:
    table = table_of([{"step": 1, "loss": 2}, {"step": 2, "loss": 1.5, "valid_loss": 1.0}])
    assert table.to_pydict() == {"step": [1, 2], "loss": [2.0, 1.5], "valid_loss": [None, 1.0]}
    assert "valid_loss" not in pyarrow.Table.from_pylist([{"step": 1}, {"step": 2, "valid_loss": 1.0}]).column_names
    assert table_of([]).num_rows == 0


def test_overrides_are_words_or_mappings() -> None:
    given = ["optimizer.lr=1e-3", {"train.train_iters": np.int64(5), "run.model": None, "a.b": [1, "x y"]}, "~c"]
    assert overrides_of(given) == [
        "optimizer.lr=1e-3", "train.train_iters=5", "run.model=null", "a.b=[1,'x y']", "~c",
    ]  # fmt: skip
    assert overrides_of([{"optimizer.lr": np.float32(0.5)}]) == ["optimizer.lr=0.5"]


@pytest.mark.parametrize(
    ("value", "written"),
    [
        ([np.float64(0.5), (np.int64(2), np.bool_(True))], "[0.5,[2,true]]"),
        ({"dim": np.int64(16), "layers": [np.int32(1), None]}, "{dim:16,layers:[1,null]}"),
        (np.array([[1, 2], [3, 4]]), "[[1,2],[3,4]]"),
        (pyarrow.array([0.25])[0], "0.25"),
    ],
)
def test_numbers_of_numpy_are_numbers_anywhere(value: object, written: str) -> None:
    assert overrides_of([{"a.b": value}]) == [f"a.b={written}"]


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Commands that calls run in a folder whose own store is `tmp_path/here`; each call ends with them."""
    said: list[list[str]] = []

    def answer(words: list[str], **more: object) -> None:
        said.append(words)
        raise EOFError

    monkeypatch.setattr(functions, "answer_of", answer)
    monkeypatch.setenv("NEMOTRON_HOME", str(tmp_path / "here"))
    return said


Call = Callable[..., object]
CALLS: dict[str, Call] = {
    "train": lambda made, **more: nemotron.train("sft", "tiny", {"run.model": made}, **more),
    "nested": lambda made, **more: nemotron.train("sft", "tiny", "a=1", {"a.b": [{"model": made}]}, **more),
    "prepare": lambda made, **more: nemotron.prepare("sft", "tiny", {"run.model": made}, **more),
    "dry_run": lambda made, **more: nemotron.dry_run("sft", "tiny", {"run.model": made}, **more),
    "evaluate": lambda made, **more: nemotron.evaluate(made, "tiny", **more),
    "a base": lambda made, **more: nemotron.evaluate("sft", "tiny", {"run.base": made}, **more),
    "finetune": lambda made, **more: nemotron.finetune(made, "chats.jsonl", **more),
    "reward": lambda made, **more: nemotron.finetune("sft", "chats.jsonl", {"a.b": made}, **more),
    "ask": lambda made, **more: nemotron.ask(made, "Why?", **more),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_a_call_is_in_the_store_of_its_artifacts(tmp_path: Path, asked: list[list[str]], call: Call) -> None:
    for home in ("here", "other"):
        publish(tmp_path / home, "super3-pretrain-model", {"model.safetensors": home})
    here, other = (nemotron.artifact("pretrain", home=tmp_path / home) for home in ("here", "other"))
    for made, homes in ((here, []), (other, [str(tmp_path / "other")])):
        for more in ({}, {"home": made.home}):
            with pytest.raises(EOFError):
                call(made, **more)
            given = [word.partition("home=")[2].strip("'") for word in asked.pop() if "home=" in word]
            assert given == ([str(made.home)] if more else homes)
    with pytest.raises(nemotron.UserError, match=f"super3-pretrain-model:v1 is in the store {other.home}") as raised:
        call(other, home=here.home)
    assert f"and the call's store is home='{here.home}'" in str(raised.value) and not asked


def test_artifacts_of_two_stores_are_refused(tmp_path: Path, asked: list[list[str]]) -> None:
    for home in ("here", "other"):
        publish(tmp_path / home, "super3-pretrain-model", {"model.safetensors": home})
    here, other = (nemotron.artifact("pretrain", home=tmp_path / home) for home in ("here", "other"))
    with pytest.raises(nemotron.UserError, match=f"the call's store is that of super3-pretrain-model:v1, {here.home}"):
        nemotron.evaluate(here, "tiny", {"run.base": other})
    assert not asked


@pytest.mark.parametrize("word", ["tiny", "--force", "--config=tiny", ""])
def test_a_word_that_sets_no_key_is_refused(word: str) -> None:
    with pytest.raises(nemotron.UserError, match="is not an override"):
        nemotron.train("sft", "tiny", word)


def test_an_unknown_stage_is_refused() -> None:
    with pytest.raises(nemotron.UserError, match="did you mean 'sft'"):
        nemotron.train("stf", "tiny")


def publish(home: Path, name: str, files: dict[str, str], **more: object) -> None:
    folder = home / "work"
    folder.mkdir(parents=True, exist_ok=True)
    for file, text in files.items():
        (folder / file).write_text(text)
    kind = "EvalResultsArtifact" if "results.json" in files else "ModelArtifact"
    Store(home).publish(folder, name=name, type=kind, fingerprint=name, **{"producer": PRODUCER} | more)


def test_an_artifact_has_a_table_of_its_steps(tmp_path: Path) -> None:
    lines = [
        {"step": 1, "loss": 2.0, "seconds": 0.1},
        {"step": 2, "loss": 1.0, "seconds": 0.2},
        {"step": 2, "valid_loss": 1.5, "seconds": 0.3},
    ]
    text = "".join(f"{json.dumps(line)}\n" for line in lines)
    publish(tmp_path, "super3-sft-model", {"metrics.jsonl": text, "model.safetensors": "x"}, metrics={"valid_loss": 1})
    (made,) = nemotron.artifacts(home=tmp_path)
    assert made == nemotron.artifact("sft", home=tmp_path)
    assert (str(made), made.version, made.summary) == ("super3-sft-model:v1", 1, {"valid_loss": 1})
    assert made.metrics.to_pylist() == [
        {"step": 1, "loss": 2.0, "seconds": 0.1, "valid_loss": None},
        {"step": 2, "loss": 1.0, "seconds": 0.2, "valid_loss": 1.5},
    ]
    assert made.parents == {}
    for name in ("config", "completions"):
        with pytest.raises(nemotron.UserError, match=r"the folder of its run is gone: .*super3-sft-model-abababababab"):
            getattr(made, name)
    (made.path / "metrics.jsonl").write_text(text[:-5])
    with pytest.raises(nemotron.UserError, match="is damaged"):
        _ = made.metrics


def test_a_run_shows_what_it_kept_until_another_uses_its_folder(tmp_path: Path) -> None:
    publish(tmp_path, "super3-rl-model", {"metrics.jsonl": '{"step": 1}\n', "model.safetensors": "x"})
    (run := tmp_path / "runs" / f"super3-rl-model-{PRODUCER.config_digest[:12]}").mkdir(parents=True)
    (run / "metrics.jsonl").write_text('{"step": 1}\n')
    (run / "config.yaml").write_text("run: {seed: 1}\n")
    made = nemotron.artifact("rl", home=tmp_path)
    assert (made.config, made.completions) == ({"run": {"seed": 1}}, [])
    kept = [
        Completion(step=step, which=which, prompt="", completion="4", reward=1, rewards={}, tokens=1, ended="stopped")
        for step in (1, 2)
        for which in ("best", "worst")
    ]
    for step in (1, 2):
        CompletionsLog(run / "completions.jsonl").append(step, [one for one in kept if one.step == step])
    assert made.completions == [one.plain() for one in kept]
    with (run / "completions.jsonl").open("a") as file:
        file.write("nothing\n")
    with pytest.raises(nemotron.UserError, match=r"completions\.jsonl is damaged: line 5"):
        _ = made.completions
    (run / "metrics.jsonl").write_text('{"step": 1, "of": "another run"}\n')
    for name in ("config", "completions"):
        with pytest.raises(nemotron.UserError, match="v1: the folder of its run was used again") as raised:
            getattr(made, name)
    assert f"nemotron runs show {run.name}" in str(raised.value)
    assert len(made.metrics) == 1, "which is the artifact's own"


def test_data_has_the_config_of_its_run_until_another_uses_its_folder(tmp_path: Path) -> None:
    (run := tmp_path / "runs" / f"super3-sft-data-{PRODUCER.config_digest[:12]}").mkdir(parents=True)
    (run / "config.yaml").write_text("run: {seed: 1}\n")
    other = replace(PRODUCER, config_digest="cd" * 32)
    for producer, own in ((PRODUCER, 1), (other, 1), (PRODUCER, 3)):
        publish(tmp_path, "super3-sft-data", {"train.parquet": "x"}, producer=producer)
        versions = nemotron.artifacts(home=tmp_path)
        assert versions[own - 1].config == {"run": {"seed": 1}} and versions[0].completions == []
    for made, message in ((versions[0], "used again"), (versions[1], "is gone")):
        with pytest.raises(nemotron.UserError, match=message):
            _ = made.config
    (run / "inputs.json").write_text("[]")
    with pytest.raises(nemotron.UserError, match="v3: the folder of its run was used again"):
        _ = versions[2].config


def test_an_evaluation_has_a_table_of_its_scores(tmp_path: Path) -> None:
    score = {"model": "rl", "task": "sums", "metric": "right", "value": 0.5, "ci95": [0.4, 0.6], "n": 100}
    results = {"models": {"rl": {"label": "after RL", "reference": "super3-rl-model:v1"}}, "scores": [score]}
    publish(tmp_path, "super3-eval-results", {"results.json": json.dumps(results)})
    assert nemotron.artifact("eval-results", home=tmp_path).metrics.to_pylist() == [
        {"model": "after RL", "artifact": "super3-rl-model:v1", "task": "sums", "metric": "right", "value": 0.5,
         "low": 0.4, "high": 0.6, "n": 100},
    ]  # fmt: skip


def test_a_damaged_artifact_is_left_out_with_a_warning(tmp_path: Path) -> None:
    publish(tmp_path, "super3-sft-model", {"model.safetensors": "x"})
    publish(tmp_path, "super3-rl-model", {"model.safetensors": "x"})
    (tmp_path / "artifacts/super3-rl-model/v1/manifest.json").write_text("{")
    with pytest.warns(UserWarning, match="super3-rl-model:v1 is left out"):
        assert [str(one) for one in nemotron.artifacts(home=tmp_path)] == ["super3-sft-model:v1"]
