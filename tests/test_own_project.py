"""docs/own-project.md as its reader follows it: the files of the page make its rows, and pass their own test."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from documents import blocks
from support import ROOT

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


def test_the_files_of_the_page_work(written: dict[str, str], capfd: pytest.CaptureFixture[str]) -> None:
    made = ran("make.py")
    assert made.startswith(written["pears.jsonl"]) and len(made.splitlines()) == 208
    ran("pears.py")
    Path("pears.jsonl").write_text(made)
    answers = [json.loads(line)["expected_answer"] for line in made.splitlines()]
    assert max(answers.count(one) for one in answers) < 0.2 * len(answers), "one answer for everything would pay"
    assert main(["super3", "rl", "-c", "pears.yaml", "--trust-code", "--dry-run"]) == 0
    said = capfd.readouterr()
    assert "none: this could run" in said.out
    assert "[super3-sft-model:latest] not there: starting from random weights" in said.out + said.err
    assert main(["super3", "rl", "-c", "pears.yaml", "--dry-run"]) == 1, "without the consent"
