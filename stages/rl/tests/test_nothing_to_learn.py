"""Steps and validations at their edges: every completion cut, a short last pass; trainings that learn nothing."""

import json
import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support import last_values_win, short

from nemotron_shared.system.atomic import read_json
from stages.rl import train
from stages.rl.engines.trl.train import conclusions, fallen
from stages.rl.rewards import Judge

main = last_values_win(train.main)


@pytest.mark.slow
def test_a_step_of_cut_completions_teaches_nothing_and_a_validation_counts_each_row_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Judge, "score", lambda one, text, answer, asked, row: len(text) % 3 / 2)
    whole = ["train.train_iters=1", "train.eval_rows=11", "data_prep.holdout.rows=11", "grpo.overlong_filtering=true"]
    found = []
    for micro in ("1", "8", "null"):
        monkeypatch.setenv("NEMOTRON_HOME", str(tmp_path / micro))
        assert main([*short("rl"), *whole, "grpo.max_new_tokens=3", f"train.micro_batch_size={micro}"]) == 0
        (model,) = (tmp_path / micro).glob("artifacts/super3-rl-model/v1")
        step, validation = map(json.loads, (model / "metrics.jsonl").read_text().splitlines())
        assert (step["loss"], step["grad_norm"], step["truncated_fraction"]) == (0, 0, 1)
        assert "valid_loss" not in validation and read_json(model / "manifest.json")["metadata"]["step"] == 1
        found.append(validation["valid_reward"])
        said = capsys.readouterr().err
        assert "step 1: all 32 completions were cut at 3 tokens and excluded (grpo.overlong_filtering)" in said
        assert "taught nothing" not in said
    assert found == [found[0]] * 3 and (found[0] * 22) == pytest.approx(round(found[0] * 22)), "a mean over 11 rows"


def test_equal_rewards_in_every_step_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Judge, "score", lambda one, text, answer, asked, row: 0.25)
    monkeypatch.setenv("NEMOTRON_HOME", str(tmp_path))
    assert main([*short("rl"), "train.train_iters=2"]) == 0
    assert (
        "WARNING: 2 of 2 steps taught nothing: all completions of a question had one reward" in capsys.readouterr().err
    )


@pytest.mark.parametrize(
    ("words", "warned"), [(("-c", "tiny"), True), (("-c", "tiny", "--in-pipeline"), False), (("-c", "dpo_tiny"), False)]
)
def test_random_weights_are_warned_of_where_answers_alone_teach(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: tuple[str, ...],
    warned: bool,
) -> None:
    monkeypatch.setenv("NEMOTRON_HOME", str(tmp_path))
    assert main([*words, "--dry-run", "--json"]) == 0
    (said,) = (one for one in json.loads(capsys.readouterr().out)["notes"] if "random weights" in one)
    assert said.startswith("WARNING: ") is warned
    assert ("make it: nemotron super3 pipeline -c tiny" in said and "run.home=FOLDER" in said) is warned


FELL = [0.58, 0.67, 0.84, 0.71, 0.39, 0.2, 0.1, 0.05, 0.02, 0.09, 0.04, 0.06]


def with_rewards(rewards: list[float]) -> Any:
    """A run with these rewards and a validation."""
    entries = [{"step": step, "reward": reward} for step, reward in enumerate(rewards, 1)]
    return SimpleNamespace(metrics=SimpleNamespace(read=lambda: [*entries, {"step": 9, "valid_reward": 1.0}]))


@pytest.mark.parametrize(
    ("rewards", "said"),
    [
        (FELL, "fell from 0.7 to 0.0525, its means in the first"),
        (
            [0.1, 0.2, 0.1, 0.2, 0.8, 0.9, 0.8, 0.9, 0.1, 0.2, 0.2, 0.1],
            "fell from 0.85 to 0.15, its means in the middle",
        ),
        ([-0.1, -0.12, -0.1, -0.12, *[-0.5] * 4, -0.9, -0.92, -0.9, -0.92], "fell from -0.11 to -0.91"),
        (FELL[:11], None),  # too few to tell
        ([0.58, 0.6, 0.7, 0.72, 0.8, 0.9, 0.84, 0.97, 0.91, 0.78, 0.9, 0.93], None),
        ([0.5, 0.501, 0.45, 0.4, 0.45, 0.47, 0.472] * 2, None),  # noise
        ([0.97] * 6 + [0.95] * 6, None),  # sure, and nothing
        ([0.5, 0.501] * 2 + [0.5] * 4 + [0.456, 0.457] * 2, None),  # less than a tenth
        ([0.0] * 12, None),
    ],
)
def test_a_reward_that_fell_far_is_told_with_its_height(rewards: list[float], said: str | None) -> None:
    found = list(fallen(with_rewards(rewards)))
    assert len(found) == (said is not None) and all(said in line for line in found if said)


def test_rewards_without_a_trend_have_hardly_ever_fallen() -> None:
    drawn = random.Random(0)
    trainings = [[drawn.gauss(0.5, 0.1) for _ in range(12)] for _ in range(1000)]
    assert sum(bool(list(fallen(with_rewards(rewards)))) for rewards in trainings) < 15


@pytest.mark.parametrize(
    ("learns", "penalty", "advised"),
    [(True, 0.0, "=0.01"), (True, 0.1, "a smaller optimizer.lr helps"), (False, 0.0, None)],
)
def test_a_training_ends_with_the_height_that_its_reward_fell_from(
    learns: bool, penalty: float, advised: str | None
) -> None:
    trainer: Any = SimpleNamespace(
        learns_from_rewards=learns, steps_with={False: 0, True: 12}, stage_run=with_rewards(FELL)
    )
    config: Any = SimpleNamespace(grpo=SimpleNamespace(reference_policy_kl_penalty=penalty))
    said = list(conclusions(trainer, config))
    assert len(said) == (advised is not None) and all(line.endswith(advised) for line in said if advised)
