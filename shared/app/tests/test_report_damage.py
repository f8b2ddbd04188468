"""What is damaged in a store is said by the report, by name and with the remedy, and hides nothing else."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from test_report import FAMILY, Page, build_pipeline

from nemotron_app.report import compare
from nemotron_app.report.command import build_report
from nemotron_app.training_log import folder_that_made
from nemotron_shared.artifacts import Store
from nemotron_shared.system.errors import UserError


def test_an_unreadable_manifest_is_told_and_hides_nothing_else(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = Store.open(str(tmp_path))
    made = build_pipeline(store)
    (made["sft-model"].path / "manifest.json").write_text("{")
    report = build_report(store, FAMILY)
    assert list(report.collected.absent) == ["sft-model"]
    report.print()
    for text in (Page(report.html_path.read_text()).text, capsys.readouterr().out):
        assert "super3-sft-model:v1 was used for super3-eval-results:v1, but is unreadable" in text
        assert "Restore its manifest.json from a copy, or delete its folder" in text
        assert "super3-sft-data:v1 is shown because it is the newest: super3-sft-model:v1" in text
    shutil.rmtree(made["eval-results"].path)
    assert "super3-sft-model is damaged" in build_report(store, FAMILY).collected.problems[0]


def test_an_edited_manifest_is_told(tmp_path: Path) -> None:
    store = Store.open(str(tmp_path))
    model = build_pipeline(store)["sft-model"]
    file = model.path / "manifest.json"
    file.write_text(file.read_text() + " ")
    said = f"super3-sft-model:v1 is damaged: manifest.json: content changed (in {model.path}); "
    assert said in build_report(store, FAMILY).summary()["problems"][0]
    assert said in compare.training_named(store, "super3-sft-model", FAMILY).notes[0]


def test_a_log_that_is_not_what_was_published_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = Store.open(str(tmp_path))
    file = build_pipeline(store)["sft-model"].path / "metrics.jsonl"
    whole = file.read_bytes()
    for damaged in (whole[: len(whole) // 2], b"", whole * 2, b"null\n\xff\n[]\n" + whole):
        file.write_bytes(damaged)
        report = build_report(store, FAMILY)
        report.print()
        for text in (Page(report.html_path.read_text()).text, capsys.readouterr().out):
            assert "super3-sft-model:v1: its metrics.jsonl is damaged: it is not what was published" in text
            assert "nemotron artifacts verify super3-sft-model:v1" in text
    copy = folder_that_made(store.resolve("super3-sft-model"), store)
    copy.mkdir(parents=True)
    (copy / "metrics.jsonl").write_bytes(whole)
    assert f"has it whole: cp {copy / 'metrics.jsonl'} {file}" in build_report(store, FAMILY).collected.problems[0]
    file.unlink()
    assert "it is missing" in build_report(store, FAMILY).collected.problems[0]


def test_scores_that_are_not_what_was_published_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = Store.open(str(tmp_path))
    file = build_pipeline(store)["eval-results"].path / "results.json"
    results = json.loads(file.read_text())
    results["scores"][0]["value"] = 0.123
    file.write_text(json.dumps(results))
    report = build_report(store, FAMILY)
    report.print()
    said = "super3-eval-results:v1: its results.json is damaged: it is not what was published; evaluate again"
    assert said in capsys.readouterr().out and said in Page(report.html_path.read_text()).text
    assert said in report.summary()["problems"][0]
    reference = next(iter(results["models"].values()))["reference"]
    assert said in compare.training_named(store, reference, FAMILY).notes[-1]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda results: [], "results.json: not a JSON object"),
        (lambda results: results | {"scores": {}}, "results.json: scores: Input should be a valid list"),
        (lambda results: results | {"tasks": {}}, "scores name 'facts', which is not among its models and tasks"),
        (lambda results: results | {"models": {"rl": 3}}, "results.json: models.rl: "),
    ],
)
def test_damaged_results_are_one_clear_error(tmp_path: Path, change: Callable[[dict], object], said: str) -> None:
    store = Store.open(str(tmp_path))
    file = build_pipeline(store)["eval-results"].path / "results.json"
    file.write_text(json.dumps(change(json.loads(file.read_text()))))
    with pytest.raises(UserError) as error:
        build_report(store, FAMILY)
    assert said in error.value.message and str(file) in error.value.message
