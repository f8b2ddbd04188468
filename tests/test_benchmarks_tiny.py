"""The parts of benchmarks/tiny_run.py that its figures stand on."""

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).resolve().parents[1] / "benchmarks"))

import tiny_run


def test_a_section_of_the_records_has_every_run_and_the_spread() -> None:
    records = [tiny_run.Record(1, 0.0, 0.55, 0.99, 100.4, 120.0, "4 + 3 + 2"), tiny_run.Record(2, 0.02, 0.60, 0.97, 90.0, 110.0, "4 + 3 + 2")]
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
