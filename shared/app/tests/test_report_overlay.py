"""`report --compare`: trainings next to each other, finished or running."""

import io
import json
import shutil
from pathlib import Path

import pytest
import yaml
from rich.console import Console
from test_report import Page, build_pipeline, lines, publish

from nemotron_app.main import dispatch, main
from nemotron_app.output import print_table
from nemotron_app.report.compare import numbers, training_in, training_named
from nemotron_shared.artifacts import Store


def log(steps: int, start: float) -> str:
    rows = [
        {"step": step, "loss": start / step, "lr": 1e-3, "seconds": 0.5 * step, "tokens": 100 * step, "memory_gb": 1.25}
        for step in range(1, steps + 1)
    ]
    return lines([row | {"tokens_per_second": 200.0} for row in rows])


def working(store: Store, name: str, steps: int, **settings: object) -> Path:
    """A run's folder as a training leaves it while it works."""
    folder = store.home / "runs" / name
    folder.mkdir(parents=True)
    config = {"train": {"train_iters": 40, **settings}, "run": {"seed": 1}}
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    (folder / "metrics.jsonl").write_text(log(steps, 4.0))
    return folder


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.open(str(tmp_path / "home"))


def test_two_runs_are_laid_beside_each_other(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    working(store, "super3-sft-model-aaaaaaaaaaaa", 30, lr=0.001)
    working(store, "super3-sft-model-bbbbbbbbbbbb", 40, lr=0.002)
    names = ["super3-sft-model-aaaaaaaaaaaa", "super3-sft-model-bbbbbbbbbbbb"]
    assert dispatch(["report", "--compare", *names, "--home", str(store.home), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["settings"] == {"train.lr": dict(zip(names, [0.001, 0.002], strict=True))}
    assert [(row["step"], row["steps"]) for row in told["trainings"]] == [(30, 40), (40, 40)]
    assert [row["tokens_per_second"] for row in told["trainings"]] == [200.0, 200.0]
    page = Page(Path(told["page"]).read_text(encoding="utf-8"))
    for text in (
        "train.lr",
        "0.002",
        "Loss by step, logarithmic, moving mean of 5 points",
        "Between one logged step and the next.",
        "Mean loss of the step, without the parts",
        *names,
    ):
        assert text in page.text
    assert "train.train_iters" not in page.text
    assert dispatch(["report", "--compare", *names, "--home", str(store.home)]) == 0
    said = capsys.readouterr().out
    assert "train.lr" in said and f"page: {told['page']}" in said


def test_models_are_compared_with_their_scores(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    made = build_pipeline(store)
    publish(store, "sft-model", "ModelArtifact", {"metrics.jsonl": log(9, 2.0)}, {"data": made["sft-data"]})
    command = ["report", "--compare", "sft-model:v1", "sft-model:v2", "--home", str(store.home), "--json"]
    assert dispatch(command) == 0
    first, second = json.loads(capsys.readouterr().out)["trainings"]
    assert (first["training"], first["sums/right"], first["prose/bits_per_byte"]) == (
        "super3-sft-model:v1",
        0.41,
        1.315,
    )
    assert (second["training"], second["sums/right"]) == ("super3-sft-model:v2", None)
    dispatch(command[:-1])
    assert "sums, right answers" in (out := capsys.readouterr().out) and "prose, bits per byte" in out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["sft-model"], "name both after --compare"),
        (["sft", "rl"], "nemotron report --compare sft rl"),
        (["nano3"], "nemotron report --family nano3"),
        (["--compare", "/usr", "rl"], "/usr: has no log of a training"),
        (["--compare", "./gone", "rl"], "gone: no such folder"),
        (["--compare", "sft", "super3-sft-model:v1"], "the same training as super3-sft-model:v1"),
        (["--compare", "sft-model:v1"], "needs two trainings or more"),
        (["--compare", "sft-model:v1", "sft-modl:v1"], "sft-modl"),
        (["--compare", "sft-model:v1", "sft-data:v1"], "super3-sft-data:v1 has no log of a training"),
    ],
)
def test_what_cannot_be_shown_is_said(
    store: Store, capsys: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    build_pipeline(store)
    assert main(["report", *words, "--home", str(store.home)]) == 2
    assert said in capsys.readouterr().err


def test_a_finished_run_has_the_scores_and_the_data_of_its_model(store: Store, tmp_path: Path) -> None:
    made = build_pipeline(store)["sft-model"]
    run = working(store, "super3-sft-model-cccccccccccc", 30)  # its digest is that of the model's config
    config = yaml.safe_load((run / "config.yaml").read_text())
    config["run"] |= {"data": "super3-sft-data:latest", "model": "art://pretrain", "family": "super3"}
    (run / "config.yaml").write_text(yaml.safe_dump(config))
    found = training_named(store, run.name, "super3")
    assert (found.state, found.scores["sums", "right"]) == ("finished", 0.41)
    assert found.settings["run.data"] == "super3-sft-data:v1"
    assert found.settings["run.model"] == "super3-pretrain-model:v1"
    assert found.identity == training_named(store, "sft", "super3").identity
    copied = tmp_path / "copied"
    shutil.copytree(made.path, copied)
    assert training_named(store, str(copied), "super3").identity == found.identity


def test_a_folder_needs_no_dot(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    working(store, "super3-sft-model-aaaaaaaaaaaa", 3).rename(tmp_path / "mine")
    monkeypatch.chdir(tmp_path)
    assert training_named(store, "mine", "super3").step == 3


def test_what_is_damaged_is_told_and_the_rest_compared(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    build_pipeline(store)
    names = ["super3-sft-model-aaaaaaaaaaaa", "super3-sft-model-bbbbbbbbbbbb", "super3-sft-model-dddddddddddd"]
    folders = [working(store, name, 4) for name in names]
    (folders[0] / "config.yaml").write_text("a: [")
    (folders[1] / "metrics.jsonl").write_text('{"step": 2, "loss": 1.0}\n{"step": 1, "loss": "low"}\n')
    (folders[2] / "config.yaml").write_text("[1]")
    (store.root / "super3-eval-results" / "v1" / "results.json").write_text("[]")
    command = ["report", "--compare", *names, "sft", "--home", str(store.home)]
    assert dispatch([*command, "--json"]) == 0
    told = "\n".join(json.loads(capsys.readouterr().out)["notes"])
    for text in (
        f"its settings are not known: {folders[0] / 'config.yaml'} is damaged",
        f"{folders[1] / 'metrics.jsonl'} is damaged: line 2 is not a number in 'loss'",
        "super3-eval-results:v1 cannot be read",
    ):
        assert text in told
    assert dispatch(command) == 0
    assert "note: super3-eval-results:v1 cannot be read" in capsys.readouterr().out


def test_a_run_without_a_step_has_nothing_to_compare(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    folder = working(store, "super3-sft-model-aaaaaaaaaaaa", 0)
    (folder / "inputs.json").write_text("[]")
    (folder / "metrics.jsonl").unlink()
    assert main(["report", "--compare", folder.name, "sft", "--home", str(store.home)]) == 2
    assert "was stopped before it had logged a step" in capsys.readouterr().err


@pytest.mark.parametrize("width", [60, 80])
def test_a_terminal_of_any_width_shows_every_figure(store: Store, width: int) -> None:
    trainings = [training_in(working(store, f"super3-sft-model-{letter * 12}", 30, lr=0.001)) for letter in "abcd"]
    console = Console(file=io.StringIO(), width=width)
    print_table(console, numbers(trainings), folded=16)
    text = console.file.getvalue()
    assert max(map(len, text.splitlines())) <= width
    assert text.count("0.1589") == 4 and text.count("1.25") == 4
