"""Which completions of a step are kept, that their rewards are the step's, and that silence and likeness are told."""

import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from support import last_values_win, short

from nemotron_data.gym.episodes import Episode
from nemotron_shared.system.errors import UserError
from nemotron_shared.tracking.completions import Completion, read_completions
from stages.rl import train
from stages.rl.engines.trl import trainer
from stages.rl.engines.trl.completions import Answer, Batch, Compared, Likeness, Silence, chosen, kept
from stages.rl.rewards import Judge

main = last_values_win(train.main)
NAN = math.nan


def test_the_best_the_worst_and_the_one_in_the_middle_come_first() -> None:
    sums, apart = np.array([0.0, 3.0, 1.0, 2.0, 4.0, 1.5, NAN]), np.zeros(7)
    assert chosen(sums, apart, 3) == {4: "best", 3: "typical", 0: "worst"}
    assert list(chosen(sums, apart, 3)) == [4, 3, 0], "by reward"
    assert chosen(sums, apart, 5) == {4: "best", 1: "other", 3: "typical", 2: "other", 0: "worst"}
    assert chosen(sums, apart, 2) == {4: "best", 0: "worst"} and chosen(sums, apart, 1) == {4: "best"}
    assert len(chosen(sums, apart, 64)) == 6, "no more than there are, and none that failed"
    assert chosen(np.array([NAN, NAN]), np.zeros(2), 2) == {0: "best", 1: "worst"}, "all failed"
    equal, group = np.array([1.0, 1.0, 0.0, 0.0]), np.array([0.1, 2.0, -0.1, -2.0])
    assert chosen(equal, group, 2) == {1: "best", 3: "worst"}, "the advantage decides between equal rewards"


def test_completions_of_several_batches_are_kept_with_their_own_figures() -> None:
    def batch(first: int) -> Batch:
        rewards = np.array([[first + row, 0.5] for row in range(4)], dtype=float)
        answers = [Answer(f"p{first}", f"c{first + row}", "e", row, "cut") for row in (1, 3)]
        return Batch([1, 3], answers, rewards, rewards[:, 0] / 10, rewards[:, 0] - 2)

    found = kept(5, [batch(0), batch(10)], ["one", "two"], 8, None)
    assert [(one.completion, one.rewards, one.reward, one.advantage) for one in found] == [
        (f"c{number}", {"one": float(number), "two": 0.5}, number / 10, number - 2.0) for number in (13, 11, 3, 1)
    ], "of this process alone, and of others what they would send"
    assert {one.prompt for one in found[:2]} == {"p10"} and found[0].step == 5


def trained(home: Path, monkeypatch: pytest.MonkeyPatch, *words: str, code: int = 0) -> tuple[Path, list[Completion]]:
    """The run's folder, and what is kept there."""
    monkeypatch.setenv("NEMOTRON_HOME", str(home))
    assert main([*short("rl"), *words]) == code
    (folder,) = home.glob("runs/super3-rl-model-*")
    return folder, read_completions(folder / "completions.jsonl")[0]


def test_a_run_that_was_stopped_has_the_completions_of_one_that_was_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[str] = []
    fails_after = 10**9

    def reward(name: str, prompt: str, text: str, answer: str) -> float:
        asked.append(text)
        if len(asked) > fails_after:
            raise UserError("a fault", "none")
        return float(len(text) % 3)

    monkeypatch.setattr(Judge, "score", lambda one, text, answer, asked, row: reward(one.name, asked, text, answer))
    monkeypatch.setenv("DOOR_PASSWORD", "How much")  # which the prompts have
    folder, whole = trained(tmp_path / "whole", monkeypatch, "logger.completions=3")
    assert [(one.step, one.which) for one in whole] == [
        (step, which) for step in range(1, 5) for which in ("best", "typical", "worst")
    ]
    metrics = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    for one in whole:
        assert one.reward == len(one.completion) % 3 == one.rewards["strict"]
        assert one.ended == "stopped" or (one.tokens, one.ended) == (8, "cut")
        assert one.prompt.startswith("<|im_start|>user\n") and one.expected.lstrip("-").isdigit()
    steps = {line["step"]: line["reward"] for line in metrics if "reward" in line}
    for best, typical, worst in zip(whole[::3], whole[1::3], whole[2::3], strict=True):
        assert best.reward >= typical.reward >= worst.reward
        assert worst.reward <= steps[best.step] <= best.reward
    text = (folder / "completions.jsonl").read_text()
    assert "How much" not in text and "***" in text
    assert not list((tmp_path / "whole" / "artifacts").rglob("completions*")), "no artifact has them"
    assert "WARNING: the reward" not in capsys.readouterr().err

    asked.clear()
    fails_after = 110  # in step 4: three steps of 32 and a validation of 3 come before it
    trained(tmp_path / "stopped", monkeypatch, "logger.completions=3", code=2)
    fails_after = 10**9
    stopped, parts = trained(tmp_path / "stopped", monkeypatch, "logger.completions=3")
    assert "continuing from step 2" in capsys.readouterr().err
    assert parts == whole and (stopped / "completions.jsonl").read_text() == text


def test_none_are_kept_where_none_are_wanted_and_a_silent_reward_is_told_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("train.train_iters=1", "rewards=[{name: strict}, {name: well_formed}]")
    folder, found = trained(tmp_path / "none", monkeypatch, *words, "logger.completions=0")
    assert found == [] and not (folder / "completions.jsonl").exists()
    said = capsys.readouterr().err
    assert "WARNING: the reward 'strict' was 0 for all 32 completions of the first step" in said
    assert "strict: 1 if the final answer is right and given cleanly" in said
    assert "written:" not in said and "expected:" not in said
    _, found = trained(tmp_path / "some", monkeypatch, *words)
    said = capsys.readouterr().err
    assert f"expected: {found[-1].expected}\n" in said and "written:  " in said
    assert "of them were cut at the longest length (grpo.max_new_tokens)" in said


def told(*steps: Any, names: tuple[str, ...] = ("strict", "well_formed")) -> list[str]:
    said: list[str] = []
    silence = Silence([Judge(name) for name in names], said.append)
    for rewards in steps:
        silence.hear(np.array(rewards, dtype=float), None, 0.0)
    return said


def test_a_reward_is_silent_after_some_completions_or_steps() -> None:
    never, once, failed = [[0, 0]] * 8, [[0, 0]] * 7 + [[1, 0]], [[NAN, NAN]] * 8
    assert told(never) == []
    first = "WARNING: the rewards 'strict', 'well_formed' were 0 for all 16 completions of the first 2 steps"
    assert told(never, never)[0] == first
    assert told(never, never) == told(never, never, never), "once"
    assert told(*[[[0]] * 8] * 2, names=("tool_call",))[1].endswith("if that is right and nothing is called.")
    assert told(never, once)[0].startswith("WARNING: the reward 'well_formed' was 0 for all 16")
    assert told(failed, failed, failed, never) == [], "nothing was judged in the first steps"
    assert told([[0, 0]], [[0, 0]], [[0, 0]])[0].endswith("all 3 completions of the first 3 steps")
    assert told(once, [[0, 1]] * 8) == [] and told(never, [[0, -1]] * 8)[0].startswith("WARNING: the reward 'strict'")


def completions(different: int, expected: int | None = None, prompts: int = 16, each: int = 8) -> list[Compared]:
    """Those of a step, with so many different texts and expected answers."""
    wanted = [None if expected is None else str(number % expected) for number in range(prompts)]
    return [
        Compared.of(Answer(f"p{row // each}", f"c{row % different}", wanted[row // each], 1, "stopped"))
        for row in range(prompts * each)
    ]


@pytest.mark.parametrize(
    ("different", "expected", "told_at"),
    [
        ([30, 7, 7, 8, 7, 7, 7, 7, 1, 1, 1, 1, 1, 1], None, 9),
        ([7, 7, 7, 7], None, None),
        ([8] * 9, None, None),
        ([1] * 5, None, 5),
        ([4] * 9, 4, None),  # choices A to D
        ([2] * 9, 4, None),
        ([1] * 5, 4, 5),  # of them one alone
        ([7] * 5, 16, 5),
        ([1] * 9, 2, None),  # yes and no
    ],
)
def test_answers_that_stay_alike_are_told_once(different: list[int], expected: int | None, told_at: int | None) -> None:
    said: list[str] = []
    likeness = Likeness(said.append)
    for step, count in enumerate(different, 1):
        likeness.hear(step, completions(count, expected))
        assert bool(said) == (told_at is not None and step >= told_at)
    assert len(said) == (told_at is not None)
    if said:
        assert said[0].startswith(
            f"WARNING: step {told_at}: the model answers its prompts alike: {different[told_at - 1]} "
        )
        assert "among 128 completions of 16 prompts" in said[0] and "grpo.reference_policy_kl_penalty=0.01" in said[0]


def test_a_penalty_is_not_advised_where_one_is_set() -> None:
    said: list[str] = []
    likeness = Likeness(said.append, has_penalty=True)
    for step in range(1, 6):
        likeness.hear(step, completions(1))
    assert "a smaller optimizer.lr helps, or a reward" in said[0] and "kl_penalty" not in said[0]


def noted(
    monkeypatch: pytest.MonkeyPatch, answers: list[Answer], others: list[Answer]
) -> tuple[list[float], list[int]]:
    """The share that a step notes, and how many completions are heard, with answers of another process."""
    figures, heard = list[float](), list[int]()
    monkeypatch.setattr(trainer, "gather_object", lambda own: [*own, *map(Compared.of, others)])
    one: Any = SimpleNamespace(
        sampled=[SimpleNamespace(answers=answers)],
        learns_from_rewards=True,
        rehearses=False,
        likeness=SimpleNamespace(hear=lambda step, compared: heard.append(len(compared))),
        _note=lambda mode, distinct_completions: figures.append(distinct_completions),
    )
    trainer.StepTrainer._note_variety(one, 1)
    return figures, heard


def test_the_completions_of_all_processes_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    own, others = ([Answer("p", text, None, 1, "stopped") for text in texts] for texts in ("aab", "bca"))
    assert noted(monkeypatch, own, others) == ([3 / 6], [6])


def test_episodes_are_compared_by_all_that_the_model_wrote(monkeypatch: pytest.MonkeyPatch) -> None:
    def episode(ids: list[int], ended: Any = "answered") -> Answer:
        played: Any = Episode(SimpleNamespace(), 0, [1], ids=ids, own=[1, 0, 1], ended=ended)
        return Answer("p", "the last turn", None, 2, ended, played)

    played = [episode([5, 7, 9]), episode([6, 7, 9]), episode([5, 8, 9])]
    failed = [episode([2, 2, 2], "failed")]
    assert noted(monkeypatch, [*played, *failed], []) == ([2 / 3], [3]), "the environment's tokens tell nothing"
    assert noted(monkeypatch, failed, []) == ([], [])
