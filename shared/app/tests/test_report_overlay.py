"""`report --compare` and `report --live`: trainings beside each other, finished or at work."""

import json
import threading
import time
from pathlib import Path

import pytest
import yaml
from test_report import Page, build_pipeline, lines, publish

from nemotron_app.main import dispatch, main
from nemotron_app.report.live import said, sparkline, watch
from nemotron_app.report.trained import training_in
from nemotron_shared.artifacts import Store
from nemotron_shared.lock import locked


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
    assert told["settings"] == {"train.lr": ["0.001", "0.002"]}
    assert [row["steps"] for row in told["trainings"]] == ["30 of 40", "40 of 40"]
    assert [row["tokens/s"] for row in told["trainings"]] == ["200", "200"]
    page = Page(Path(told["page"]).read_text(encoding="utf-8"))
    for text in ("train.lr", "0.002", "Loss by step, logarithmic", "Mean loss of the step.", *names):
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
    assert (first["training"], first["sums"], first["prose"]) == ("super3-sft-model:v1", "41.0%", "1.315")
    assert (second["training"], second["sums"]) == ("super3-sft-model:v2", "–")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["sft-model"], "nemotron report --compare sft-model"),
        (["--compare", "sft-model:v1"], "needs two trainings or more"),
        (["--compare", "sft-model:v1", "sft-modl:v1"], "sft-modl"),
        (["--compare", "sft-model:v1", "sft-data:v1"], "super3-sft-data:v1 has no log of a training"),
        (["--compare", "--live"], "two different pages"),
        (["--live"], "no training runs"),
        (["--live", "--json"], "--live is for people"),
    ],
)
def test_what_cannot_be_shown_is_said(
    store: Store, capsys: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    build_pipeline(store)
    assert main(["report", *words, "--home", str(store.home)]) == 2
    assert said in capsys.readouterr().err


def test_a_training_is_followed_until_it_ends(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    folder, page = working(store, "super3-sft-model-cccccccccccc", 3), store.home / "live.html"
    seen: list[str] = []

    def work() -> None:
        """Hold the run's lock as a training does, and end once the page has been written twice."""
        with locked(folder / "lock", wait=False):
            ready.set()
            while len(seen) < 2:
                text = page.read_text(encoding="utf-8") if page.is_file() else ""
                if text and text not in seen[-1:]:
                    seen.append(text)
                    (folder / "metrics.jsonl").write_text(log(20, 4.0))
                time.sleep(0.01)

    ready, worker = threading.Event(), threading.Thread(target=work)
    worker.start()
    assert ready.wait(60)
    assert watch(store, page, renew=1, patience=2.5) == 0
    worker.join()
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"page: {page} (Ctrl-C leaves; the trainings go on)"
    assert any("step 3/40" in line for line in lines) and any("step 20/40" in line for line in lines)
    assert all('http-equiv="refresh"' in text for text in seen)
    assert 'http-equiv="refresh"' not in page.read_text(encoding="utf-8")  # what has ended need not be read again


def test_three_lines_tell_how_a_training_goes(store: Store) -> None:
    folder = working(store, "super3-sft-model-dddddddddddd", 10)
    name, progress, course = said(training_in(folder))
    assert name == folder.name
    assert progress.startswith("  step 10/40") and "0:15 left" in progress and "200 tokens/s  1.25 GB" in progress
    assert course.split() == ["loss", "0.4", sparkline([4.0 / step for step in range(1, 11)])]


def test_a_sparkline_shows_the_course() -> None:
    assert sparkline([1.0, 2.0, 3.0, float("nan")], 3) == "▁▅█"
    assert sparkline([5.0, 5.0]) == "▁▁"
    assert sparkline([]) == ""
    assert len(sparkline([float(n) for n in range(1000)], 12)) == 12
