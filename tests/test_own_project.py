"""docs/own-project.md as its reader follows it: the files of the page make its rows, and pass their own test."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from documents import blocks
from support import ROOT, make_model

from nemotron_app.main import main


@pytest.fixture
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The files that the page shows, in an empty folder; their text by name."""
    files = {block.title: block.text for block in blocks(ROOT / "docs" / "own-project.md") if block.title}
    for name, text in files.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NEMOTRON_HOME", str(tmp_path / "home"))
    return files


def ran(name: str) -> str:
    return subprocess.run([sys.executable, name], check=True, capture_output=True, text=True).stdout


def test_the_files_of_the_page_work(written: dict[str, str], tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    made = ran("make.py")
    assert made.startswith(written["pears.jsonl"]) and len(made.splitlines()) == 208
    ran("pears.py")
    Path("pears.jsonl").write_text(made)
    answers = [json.loads(line)["expected_answer"] for line in made.splitlines()]
    assert max(answers.count(one) for one in answers) < 0.2 * len(answers), "one answer for everything would pay"
    start = ["super3", "rl", "-c", "pears.yaml", "--dry-run"]
    assert main([*start, "--trust-code"]) == 1
    assert "run.model: no artifact 'super3-sft-model' in " in capfd.readouterr().out
    make_model(tmp_path / "model")
    assert main(["super3", "model", "import", "sft", "./model"]) == 0
    capfd.readouterr()
    assert main([*start, "--trust-code"]) == 0
    said = capfd.readouterr().out
    assert "none: this could run" in said and "# makes\npears-rl-model" in said
    assert main(start) == 1, "without the consent"


@pytest.mark.parametrize(
    ("base", "words", "told"),
    [
        ("tiny", [], "nemotron super3 pipeline -c tiny (or "),
        ("tiny", ["run.home=here"], "nemotron super3 pipeline -c tiny run.home=here (or "),
        ("dpo_tiny", ["run.missing_model=error"], "nemotron super3 sft -c tiny (or "),
        ("default", [], "nemotron super3 sft -c super3 (or "),
    ],
)
def test_a_missing_model_is_made_with_the_config_that_ones_own_builds_on(
    written: dict[str, str], capfd: pytest.CaptureFixture[str], base: str, words: list[str], told: str
) -> None:
    Path("mine.yaml").write_text(f"defaults: [{base}, _self_]\n")
    main(["super3", "rl", "-c", "mine.yaml", *words, "--dry-run", "--json"])
    said = json.loads(capfd.readouterr().out)
    (model,) = (line for line in [*said["problems"], *said["notes"]] if "super3-sft-model" in str(line))
    assert f"make it: {told}" in str(model)
