"""Rewards are pure functions: a table of what each gives. What is right is tested with the verifier."""

import re
import sys
from pathlib import Path
from typing import Any

import pytest

from nemotron_shared.system.errors import UserError
from stages.rl.rewards import ENVIRONMENT, MODEL, REWARDS, TOOL_CALL, Judge, lenient, rewarded, strict, well_formed


@pytest.mark.parametrize(
    ("completion", "expected", "both"),
    [
        ("12", "12", (1.0, 1.0)),
        (" 12\n", "12", (1.0, 1.0)),
        ("<think>7+5</think>12", "12", (1.0, 1.0)),
        ("<think>12</think>13", "12", (0.0, 0.0)),
        ("<think>so 12", "12", (0.0, 0.0)),
        ("So it is 12 apples.", "12", (0.0, 1.0)),
        ("3 + 4 = 7\n#### 1,200", "1200", (1.0, 1.0)),
        ("12 or 13", "12", (0.0, 0.0)),
        ("-5", "5", (0.0, 0.0)),
        ("", "12", (0.0, 0.0)),
    ],
)
def test_strict_and_lenient(completion: str, expected: str, both: tuple[float, float]) -> None:
    assert (strict(completion, expected), lenient(completion, expected)) == both


@pytest.mark.parametrize(
    ("completion", "reward"),
    [
        ("12", 1.0),
        ("<think>a</think>12", 1.0),
        ("<think>a", 0.0),
        ("a</think>12", 0.0),
        ("</think>a<think>12", 0.0),
        ("<think>a</think><think>b</think>12", 0.0),
        ("<think>a</think>", 0.0),
    ],
)
def test_well_formed(completion: str, reward: float) -> None:
    assert well_formed(completion, "") == reward


def test_every_reward_of_the_table_is_between_zero_and_one() -> None:
    assert len(REWARDS.own) >= 3
    for reward in map(REWARDS.load, REWARDS.own.keys() - {ENVIRONMENT, MODEL, TOOL_CALL}):
        assert 0 <= reward("<think>3</think>4", "4") <= 1


@pytest.mark.parametrize(
    ("prompt", "completion", "given"),
    [
        ("assistant\n<think>\n", "3+6=9, 9-3=6\n</think>\n6", (1, 1, 1)),
        ("assistant\n<think>\n", "First 3+6=9, then 9-3=6. So the answer is 6", (0, 0, 0)),
        ("assistant\n<think>\n", "3+6-3=9-3=6", (0, 0, 0)),
        ("assistant\n", "<think>9-3=6</think>6", (1, 1, 1)),
        ("assistant\n<think></think>", "6", (1, 1, 1)),
        ("[/INST][THINK]", "9-3=6[/THINK]6", (1, 1, 1)),
        ("[/INST][THINK]", "So the answer is 6", (0, 0, 0)),
        ("[/INST]", "[THINK]9-3=6[/THINK]6", (1, 1, 1)),
        ("[/INST]", "[THINK]So the answer is 6", (0, 0, 0)),
        ("<seed:bos>assistant\n<seed:think>\n", "9-3=6</seed:think>6", (1, 1, 1)),
        ("what does [THINK] mean?[/INST]", "6", (1, 1, 1)),
    ],
)
def test_a_thought_that_the_prompt_has_opened_is_part_of_the_answer(
    prompt: str, completion: str, given: tuple[float, ...]
) -> None:
    names = ("strict", "lenient", "well_formed")
    assert tuple(rewarded(name, prompt, completion, "6") for name in names) == given


@pytest.mark.parametrize("gives", [float("nan"), float("inf"), None, "1", 1 + 2j])
def test_what_a_reward_gives_is_looked_at(monkeypatch: pytest.MonkeyPatch, gives: Any) -> None:
    monkeypatch.setattr(f"{__name__}.given", gives, raising=False)
    monkeypatch.setitem(REWARDS.own, "mine", f"{__name__}:mine")  # ty: ignore[invalid-argument-type]
    with pytest.raises(UserError, match=re.escape(f"the reward 'mine' returned {gives!r}, not a finite number")):
        rewarded("mine", "3+4?", "seven", "7")


def test_a_number_beyond_all_floats_is_no_reward(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{__name__}.given", 10**400, raising=False)
    monkeypatch.setitem(REWARDS.own, "mine", f"{__name__}:mine")  # ty: ignore[invalid-argument-type]
    with pytest.raises(UserError, match=r"the reward 'mine' returned 1000+\.\.\., not a finite number"):
        rewarded("mine", "3+4?", "seven", "7")


def test_a_reward_that_ends_the_program_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(REWARDS.own, "mine", f"{__name__}:ends")  # ty: ignore[invalid-argument-type]
    with pytest.raises(UserError, match=r"the reward 'mine' raised SystemExit: 0"):
        rewarded("mine", "3+4?", "seven", "7")


def test_a_reward_that_fails_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(REWARDS.own, "mine", f"{__name__}:fails")  # ty: ignore[invalid-argument-type]
    with pytest.raises(UserError, match=r"the reward 'mine' raised ZeroDivisionError.*for the answer 'seven'"):
        rewarded("mine", "3+4?", "seven", "7")


def mine(completion: str, expected: str) -> Any:
    return globals()["given"]


def ends(completion: str, expected: str) -> float:
    sys.exit(0)


def fails(completion: str, expected: str) -> float:
    return 1 / 0


def test_the_readme_describes_each_reward() -> None:
    text = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
    table = text.partition("| name | 1 when | else |")[2].partition("\n\n")[0]
    assert re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE) == list(REWARDS.own)


WEATHER = {"type": "function", "function": {"name": "weather", "parameters": {"properties": {"days": {"default": 1}}}}}
CALL = '{"name": "weather", "arguments": {"city": "Kelby"}}'
DAYS = '{"name": "weather", "arguments": {"days": 1.0, "city": "Kelby"}}'


@pytest.mark.parametrize(
    ("completion", "expected", "gives"),
    [
        (f"<tool_call>{CALL}</tool_call>", CALL, 1.0),
        (f"<tool_call>{DAYS}</tool_call>", f"[{CALL}]", 1.0),
        (f"<tool_call>{DAYS.replace('1.0', '2')}</tool_call>", CALL, 0.0),
        (CALL, CALL, 0.0),
        ("21", "21", 1.0),
        (f"21<tool_call>{CALL}</tool_call>", "21", 0.0),
        ("22", "[]", 1.0),
        (f"<tool_call>{CALL}</tool_call>", "[]", 0.0),
    ],
)
def test_tool_calls_are_rewarded_by_their_meaning(completion: str, expected: str, gives: float) -> None:
    row = {"responses_create_params": {"input": "?", "tools": [WEATHER]}}
    judge = Judge("tool_call").load()
    assert set(judge.asks_for) == {"completion", "expected", "prompt", "row"} and judge.reads_control_tokens
    assert judge("Call in <tool_call>.", completion, expected, row) == gives
    if completion == CALL:  # a template without the mark
        assert judge("assistant: ", completion, expected, row) == 1.0
