"""Rows of agents that no environment of the config has are found before a training, with their place."""

import json
from pathlib import Path
from typing import Any

import pytest
from support import EPISODES

from nemotron_data.gym.catalogue import new_environment
from nemotron_data.synthetic.episodes import beginnings
from stages.rl import data_prep
from stages.rl.train import main

ROWS = 30


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NEMOTRON_HOME", "home")


def write_rows(agents: dict[int, str]) -> list[str]:
    """Rows of `drawers`, those of some lines with another agent; returns the words that train on them."""
    rows: list[dict[str, Any]] = list(beginnings("drawers", 1, ROWS))
    for line, name in agents.items():
        rows[line - 1]["agent_ref"] = {"type": "responses_api_agents", "name": name}
    Path("rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    split = "data_prep.split={train: 1, valid: 0, test: 0}"
    return [*EPISODES, "data_prep.source=rows.jsonl", "data_prep.workers=1", split]


def test_among_the_first_rows_it_is_found_before_the_data_is_prepared(capsys: pytest.CaptureFixture[str]) -> None:
    words = write_rows({3: "ghost"})
    assert main([*words, "--dry-run"]) == 1
    assert capsys.readouterr().out.count("rows.jsonl:3: its agent 'ghost' is not among those of the environments") == 1
    assert main(words) == 2
    assert "error: rows.jsonl:3: its agent 'ghost'" in capsys.readouterr().err
    assert not Path("home/artifacts").exists()


def test_in_prepared_data_it_is_named_with_the_line_of_the_users_file(capsys: pytest.CaptureFixture[str]) -> None:
    words = write_rows({20: "ghost", 25: "ghost"})
    assert data_prep.main(words) == 0
    (manifest,) = Path("home/artifacts/super3-rl-data").glob("v1/manifest.json")
    assert json.loads(manifest.read_text())["metadata"]["agents"] == {
        "drawers_simple_agent": "rows.jsonl:1",
        "ghost": "rows.jsonl:20",
    }
    capsys.readouterr()
    assert main([*words, "--dry-run"]) == 1
    told = "engine.environments.servers: super3-rl-data:v1: the row rows.jsonl:20: its agent 'ghost' is not among"
    assert told in capsys.readouterr().out
    assert main(words) == 2
    said = capsys.readouterr().err
    assert told in said and "importing libraries" not in said


def test_tools_that_the_environment_does_not_have_are_found(capsys: pytest.CaptureFixture[str]) -> None:
    words = write_rows({})
    rows = list(map(json.loads, Path("rows.jsonl").read_text().splitlines()))
    rows[4]["responses_create_params"]["tools"][0]["name"] = "fnd"
    Path("rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    fault = "environment 'drawers' has no tool 'fnd'"
    assert main([*words, "--dry-run"]) == 1
    assert f"rows.jsonl:5: {fault}" in (said := capsys.readouterr().out) and "did you mean 'find'" in said
    assert data_prep.main(words) == 0
    assert main([*words, "--dry-run"]) == 1
    assert f"train.jsonl:5: {fault}" in capsys.readouterr().out


def test_an_environment_that_does_not_start_is_found(capsys: pytest.CaptureFixture[str]) -> None:
    folder = new_environment("broken", Path("environments"))
    (folder / "broken.py").write_text("def Episode(:\n")
    words = [*write_rows({}), "--dry-run"]
    assert main([*words, "engine.environments.servers=[drawers, broken]"]) == 1
    said = capsys.readouterr().out
    assert "environment 'broken' does not start" in said and "SyntaxError" in said
    assert main([*words, "engine.environments.servers=[drawers, drawers]"]) == 1
    assert "drawers, drawers: one is named twice" in capsys.readouterr().out


def test_an_episode_without_room_for_a_second_turn_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    words = [*EPISODES, "--dry-run", "engine.environments.max_episode_tokens=20", "grpo.max_new_tokens=20"]
    assert main(words) == 1
    assert "20 tokens of an episode leave no room for a second turn of up to 20" in capsys.readouterr().out


def test_rows_of_the_configs_environments_are_no_problem(capsys: pytest.CaptureFixture[str]) -> None:
    words = write_rows({})
    assert data_prep.main(words) == 0
    assert main([*words, "--dry-run"]) == 0
    assert "none: this could run" in capsys.readouterr().out


def test_a_fault_of_a_row_is_told_once(capsys: pytest.CaptureFixture[str]) -> None:
    words = write_rows({2: " "})
    assert main([*words, "--dry-run"]) == 1
    assert capsys.readouterr().out.count("rows.jsonl:2: agent_ref without a name") == 1
