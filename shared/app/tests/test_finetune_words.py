"""Names of files on the command line of `nemotron finetune`, whatever signs they hold."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from nemotron_app.finetune.command import Comparison, _is_override
from nemotron_app.finetune.plan import _warn_of_held_out
from nemotron_shared.artifacts import Artifact


def test_a_file_whose_name_looks_like_an_override_is_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert _is_override("train.train_iters=5") and _is_override("a=b.jsonl")
    (tmp_path / "a=b.jsonl").touch()
    assert not _is_override("a=b.jsonl")


@pytest.mark.parametrize(
    ("names", "told"),
    [
        (["train.jsonl", "validation.jsonl"], "validation.jsonl will be trained on, too"),
        (["a/chats-train.csv", "a/chats_dev.csv", "test.csv"], "chats_dev.csv, test.csv will be trained on, too"),
        (["test.jsonl"], None),
        (["contest.jsonl", "evaluation.txt", "latest.jsonl"], None),
    ],
)
def test_a_file_that_is_named_as_held_out_is_told(
    names: list[str], told: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    _warn_of_held_out([f"/data/{name}" for name in names])
    said = capsys.readouterr().err
    assert told in said if told else not said


def test_texts_with_other_ends_of_lines_are_compared(tmp_path: Path) -> None:
    scores = []
    for model in ("base", "after"):
        (tmp_path / "samples" / model).mkdir(parents=True)
        sample = {"question": "a\u2028b", "expected": "c", "output": "d\x85"}
        lines = json.dumps(sample, ensure_ascii=False) + "\n"
        (tmp_path / "samples" / model / "held_out.jsonl").write_text(lines, encoding="utf-8")
        scores.append({"task": "held_out", "model": model})
    (tmp_path / "results.json").write_text(json.dumps({"scores": scores, "comparisons": []}))
    results = SimpleNamespace(path=tmp_path)
    assert Comparison.read(cast(Artifact, results)).answers[0]["question"] == "a\u2028b"
