"""What takes a language model refuses a reward model with one sentence, and never drops or invents a head."""

from pathlib import Path
from typing import Any

import pytest
from support import make_reward_model, nemotron

DOORS = (
    ("super3", "sft", "-c", "tiny", "run.model=./scores"),
    ("super3", "eval", "-c", "tiny", "run.model=./scores"),
    ("generate", "./scores", "asked.txt", "--out", "answers.jsonl"),
    ("chat", "./scores"),
    ("serve", "./scores"),
    ("export", "./scores", "./out"),
    ("finetune", "./scores", "rows.jsonl"),
)


@pytest.mark.slow
@pytest.mark.parametrize("words", DOORS, ids=lambda words: words[0] if len(words) < 4 else words[1])
def test_every_door_for_language_models_refuses_a_folder_with_a_reward_model(
    run: Any, tmp_path: Path, words: tuple[str, ...]
) -> None:
    make_reward_model(tmp_path / "scores")
    (tmp_path / "asked.txt").write_text("2+2?\n")
    (tmp_path / "rows.jsonl").write_text('{"question": "2+2?", "answer": "4"}\n' * 20)
    done = run(*nemotron(*words), ok=False)
    assert done.returncode == 2, done.stderr
    assert "is a reward model, which scores answers and writes none" in done.stderr
