"""What `import nemotron` gives, without a command: intervals, tables and artifacts of a store."""

import json
import math
from pathlib import Path

import numpy as np
import pyarrow
import pytest

import nemotron
from nemotron_app.notebook.artifacts import table_of
from nemotron_app.notebook.functions import overrides_of
from nemotron_shared.artifacts import Producer, Store

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


@pytest.mark.parametrize("word", ["tiny", "--force", "--config=tiny", ""])
def test_a_word_that_sets_no_key_is_refused(word: str) -> None:
    with pytest.raises(nemotron.UserError, match="is no override"):
        nemotron.train("sft", "tiny", word)


def test_an_unknown_stage_is_refused() -> None:
    with pytest.raises(nemotron.UserError, match="did you mean 'sft'"):
        nemotron.train("stf", "tiny")


def publish(home: Path, name: str, files: dict[str, str], **more: object) -> None:
    folder = home / "work"
    folder.mkdir(parents=True)
    for file, text in files.items():
        (folder / file).write_text(text)
    kind = "EvalResultsArtifact" if "results.json" in files else "ModelArtifact"
    Store(home).publish(folder, name=name, type=kind, fingerprint=name, producer=PRODUCER, **more)


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
    assert made.parents == {} and made.completions == []
    with pytest.raises(nemotron.UserError, match=r"config\.yaml is gone"):
        _ = made.config
    (made.path / "metrics.jsonl").write_text(text[:-5])
    with pytest.raises(nemotron.UserError, match="is damaged"):
        _ = made.metrics


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
