"""Models are scored in an environment: every episode is kept, and a failure is no score."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support import last_values

from nemotron_data.gym.catalogue import new_environment
from stages.eval import data_prep
from stages.eval.scoring import compare, score
from stages.eval.train import main

SHORT = ("-c", "drawers", "run.model=null", "run.sft=null", "run.base=null", "evaluation.random_baseline=true",
         "evaluation.limit=4", "evaluation.max_new_tokens=8", "evaluation.check_overlap=false")  # fmt: skip


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("NEMOTRON_HOME", str(tmp_path))
    return tmp_path


def test_each_episode_is_kept_with_who_said_what(store: Path) -> None:
    assert main([*SHORT]) == 0
    folder = store / "artifacts" / "super3-eval-results" / "v1"
    (file,) = folder.glob("samples/*/drawers.jsonl")
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    assert len(rows) == 4
    for row in rows:
        assert [turn["by"] for turn in row["turns"][:2]] == ["prompt", "model"]
        assert row["question"] in row["turns"][0]["text"]
        assert 1 <= row["turns"][1]["tokens"] <= 8
        assert row["expected"]
    (entry,) = json.loads((folder / "results.json").read_text())["scores"]
    assert (entry["metric"], entry["n"]) == ("reward", 4)
    assert entry["ci95"][0] <= entry["value"] <= entry["ci95"][1]
    assert {"turns", "calls", "refused_calls", "used_tools"} <= entry["figures"].keys()


def test_an_environment_of_ones_own_is_a_task(
    store: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(store)
    folder = new_environment("mine")
    words = [*SHORT, "data_prep.tasks=[mine]", "evaluation.environments.servers=[mine]"]
    assert main(words) == 2
    remedy = capsys.readouterr().err.partition("as by: python ")[2].split()
    subprocess.run([sys.executable, *remedy], check=True)
    assert main(words) == 0
    (entry,) = json.loads((store / "artifacts/super3-eval-results/v1/results.json").read_text())["scores"]
    assert (entry["task"], entry["metric"], entry["n"]) == ("mine", "reward", 4)
    with (folder / "data" / "validation.jsonl").open("a") as file:
        file.write("{}\n")
    assert main(words) == 2  # changed rows are other data
    assert "validation.jsonl:201: not a row in NeMo-Gym's form" in capsys.readouterr().err


def test_a_row_that_no_environment_plays_is_named_by_a_dry_run(
    store: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(store)
    folder = new_environment("mine")
    rows = (folder / "data" / "example.jsonl").read_text().splitlines()
    (folder / "data" / "validation.jsonl").write_text("\n".join([rows[0], rows[1].replace("mine_", "ghost_")]))
    words = [*SHORT, "data_prep.tasks=[mine]", "evaluation.environments.servers=[mine]"]
    assert data_prep.main(words) == 0
    assert main([*words, "--dry-run"]) == 1
    said = capsys.readouterr().out
    assert "mine.jsonl:2: its agent 'ghost_simple_agent' is not among those of the environments" in said
    (folder / "data" / "validation.jsonl").write_text(rows[0].replace('"compare"', '"compared"'))
    assert data_prep.main(words) == 0
    few = ["evaluation.environments.max_episode_tokens=9", "evaluation.max_new_tokens=9"]
    assert main(last_values([*words, *few, "--dry-run"])) == 1
    said = capsys.readouterr().out
    assert "mine.jsonl:1: environment 'mine' has no tool 'compared'" in said
    assert "9 tokens of an episode leave no room for a second turn of up to 9" in said
    (folder / "data" / "validation.jsonl").write_text(rows[0].replace('"compare"', '"verify"'))
    assert main(words) == 2
    assert "validation.jsonl:1: not a row in NeMo-Gym's form (a tool cannot have this name" in capsys.readouterr().err


def test_an_episode_that_failed_would_have_no_score(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*SHORT, "evaluation.environments.on_failure=mask"]) == 2
    assert "an episode that failed has no score; set it to stop" in capsys.readouterr().err


@pytest.mark.parametrize("values", [(-1.0, -0.5, -1.0), (3.0, 2.5, 0.0)])
def test_rewards_of_any_size_have_an_interval(values: tuple[float, ...]) -> None:
    def samples(rewards: tuple[float, ...]) -> list[dict[str, Any]]:
        return [{"id": number, "score": reward} for number, reward in enumerate(rewards)]

    found = score("episode", samples(values))
    assert found["ci95"][0] <= found["value"] <= found["ci95"][1]
    difference = compare("episode", samples(values), samples(tuple(value + 1 for value in values)))
    assert difference["ci95"] == [1.0, 1.0]
