"""Fewer prompts than a step asks are refused before anything is done, with a number that works."""

import json
from pathlib import Path

import pytest
from support import last_values_win, short

from stages.rl import data_prep, train

main = last_values_win(train.main)


WHOLE = "data_prep.split={train: 1.0, valid: 0.0, test: 0.0}"


@pytest.fixture
def ten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("NEMOTRON_HOME", str(tmp_path / "home"))
    file = tmp_path / "ten.jsonl"
    file.write_text(
        "".join(json.dumps({"question": f"{n}+1?", "expected_answer": str(n + 1)}) + "\n" for n in range(10))
    )
    return f"data_prep.source={file}"


def dry(*words: str) -> int:
    return main(["-c", "tiny", *words, "--dry-run"])


def test_a_dry_run_counts_the_rows(ten: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert dry(ten, WHOLE) == 1
    said = capsys.readouterr().out
    assert "10 training prompts are too few: a step takes 16" in said
    assert "set grpo.num_prompts_per_step=10" in said
    assert dry(ten, WHOLE, "grpo.num_prompts_per_step=10") == 0
    held_out, micro = "data_prep.holdout.rows=1", "train.micro_batch_size=24"
    assert dry(ten, held_out, micro, "grpo.num_prompts_per_step=12") == 1
    assert "9 training prompts are too few: a step takes 12" in (said := capsys.readouterr().out)
    assert "set grpo.num_prompts_per_step=9" in said, "72 completions are whole micro batches"


def test_a_start_counts_what_was_prepared(ten: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert data_prep.main([*short("rl"), ten, WHOLE]) == 0
    assert main([*short("rl"), ten, WHOLE, "grpo.num_prompts_per_step=11"]) == 2
    assert "10 training prompts are too few: a step takes 11" in capsys.readouterr().err
