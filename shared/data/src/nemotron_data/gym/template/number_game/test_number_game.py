"""Whether the solution earns the reward, over HTTP as in training, and something else does not."""

import json
from pathlib import Path

from nemotron_data.formats.rl_rows import RLRow
from nemotron_data.gym.play import play

FOLDER = Path(__file__).resolve().parent
ROWS = [json.loads(line) for line in (FOLDER / "data" / "example.jsonl").read_text().splitlines()]


def test_the_solution_of_each_row_earns_the_reward(tmp_path: Path) -> None:
    for row in ROWS:
        *_, last = play(str(FOLDER), RLRow.of(row), [], tmp_path)
        assert last.startswith("reward 1")


def test_another_answer_earns_nothing(tmp_path: Path) -> None:
    *_, last = play(str(FOLDER), RLRow.of(ROWS[0]), ["no idea"], tmp_path)
    assert last.startswith("reward 0")
