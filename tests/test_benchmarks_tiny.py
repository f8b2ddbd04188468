"""The parts of benchmarks/tiny_run.py that its figures stand on."""

import sys
from pathlib import Path

import pytest

sys.path += [str(Path(__file__).resolve().parents[1] / folder) for folder in ("benchmarks", "ci")]

import runs
import tiny_run


def test_a_section_of_the_records_has_every_run_and_the_spread() -> None:
    records = [
        tiny_run.Record(1, 0.0, 0.55, 0.99, 100.4, 120.0, "4 + 3 + 2"),
        tiny_run.Record(2, 0.02, 0.60, 0.97, 90.0, 110.0, "4 + 3 + 2"),
    ]
    text = tiny_run.section(records)
    assert "| 1 | 0.0% | 55.0% | 99.0% | 100 | 120 |\n| 2 | 2.0% | 60.0% | 97.0% | 90 | 110 |" in text
    assert "sft: median 57.5%, 55.0% to 60.0%" in text
    assert "wall: median 95, 90 to 100; CPU: median 115, 110 to 120" in text


def test_a_run_that_fails_keeps_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tiny_run, "RECORDS", tmp_path / "records.md")
    monkeypatch.setattr(sys, "argv", ["tiny_run.py", "--seeds", "1", "--keep", str(tmp_path / "file" / "home")])
    (tmp_path / "file").write_text("a file where the folder of stores would be")
    with pytest.raises(SystemExit, match="error"):
        tiny_run.main()
    assert not (tmp_path / "records.md").exists()


def test_the_readme_shows_the_newest_runs_of_each_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    first = tiny_run.Record(1, 0.0, 0.5, 0.96, 61.0, 70.0, "480 + 180 + 45")
    second = tiny_run.Record(2, 0.0, 0.6, 0.98, 65.0, 75.0, "480 + 180 + 45")
    sections = [tiny_run.section([first._replace(steps="9 + 9 + 9")]), tiny_run.section([first])]
    monkeypatch.setattr(tiny_run, "processor", lambda: "Another CPU")
    sections += [tiny_run.section([first]), tiny_run.section([first, second])]
    (tmp_path / "records.md").write_text("".join(sections))
    heading, _, *machines = runs.runs_table(tmp_path / "records.md").splitlines()
    assert heading == "| machine | runs | base | after SFT | after RL | time | CPU time |"
    assert [line.split(" | ")[1] for line in machines] == ["1", "2"]
    assert machines[1].startswith("| Another CPU, ")
    assert machines[1].endswith("| 2 | 0.0% | 55% (50 to 60) | 97% (96 to 98) | 63 s (61 to 65) | 72 s (70 to 75) |")
