"""What is kept of the completions of RL: bounded, without secrets, and cut back where a run goes on."""

from pathlib import Path
from typing import Any

import pytest

from nemotron_shared.tracking.completions import (
    LONGEST,
    LONGEST_TURN,
    MOST_TURNS,
    Completion,
    CompletionsLog,
    Turn,
    as_markdown,
    figures,
    is_kept,
    read_completions,
    shortened,
    shortened_turns,
)

SECRET = "Planted0Completion1"


def one(step: int = 1, **more: Any) -> Completion:
    about: dict[str, Any] = {
        "step": step, "which": "best", "prompt": "2+2?", "completion": "4", "expected": "4", "rewards": {"strict": 1.0},
        "reward": 1.0, "advantage": 0.5, "tokens": 2, "ended": "stopped",
    }  # fmt: skip
    return Completion(**about | more)


def test_every_step_is_kept_at_first_and_a_hundred_of_each_doubling_later() -> None:
    assert all(is_kept(step) for step in range(1, 201))
    assert [step for step in range(201, 420) if is_kept(step)] == [*range(202, 401, 2), *range(404, 420, 4)]
    counts = [sum(is_kept(step) for step in range(first + 1, 2 * first + 1)) for first in (200, 400, 51_200)]
    assert counts == [100, 100, 100]


def test_a_long_text_keeps_both_ends_and_no_part_of_a_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOOR_PASSWORD", SECRET)
    assert shortened(f"say {SECRET}") == "say ***"
    assert shortened("x" * LONGEST) == "x" * LONGEST
    text = "a" * 1500 + "b" * 3000 + "c" * 1500
    assert shortened(text) == f"{'a' * 1000} ... (4,000 characters) ... {'c' * 1000}"
    for place in range(LONGEST // 2 - len(SECRET), LONGEST // 2 + 2):  # over the place where a text is cut
        for cut in (f"{'a' * place}{SECRET}{'b' * 9000}", f"{'b' * 9000}{SECRET}{'a' * place}"):
            assert not any(SECRET[at : at + 8] in shortened(cut) for at in range(len(SECRET) - 8))
    turns = [Turn(by="model", tokens=1, text=f"{number} {'x' * LONGEST_TURN}") for number in range(3 * MOST_TURNS)]
    kept = shortened_turns(turns)
    assert len(kept) == MOST_TURNS and (kept[0].text[:2], kept[-1].text[:4]) == ("0 ", "119 ")
    assert all(len(turn.text) < LONGEST_TURN + 40 for turn in kept)


def test_a_run_that_goes_on_has_each_step_once(tmp_path: Path) -> None:
    log = CompletionsLog(tmp_path / "completions.jsonl")
    log.cut_after(0)
    assert not log.path.exists(), "nothing was kept, and nothing is left behind"
    for step in (1, 2, 3):
        log.append(step, [one(step), one(step, which="worst", reward=None, rewards={"strict": None}, advantage=None)])
    with log.path.open("a") as file:
        file.write('{"step": 4, "wh')  # a kill
    assert [entry.step for entry in read_completions(log.path)[0]] == [1, 1, 2, 2, 3, 3]
    log.cut_after(2)
    log.append(3, [one(3)])
    found, damage = read_completions(log.path)
    assert [(entry.step, entry.which) for entry in found] == [
        (1, "best"), (1, "worst"), (2, "best"), (2, "worst"), (3, "best")
    ]  # fmt: skip
    assert damage == [] and found[1].reward is None


def test_damaged_lines_are_named_and_the_others_read(tmp_path: Path) -> None:
    log = CompletionsLog(tmp_path / "completions.jsonl")
    log.append(1, [one()])
    with log.path.open("ab") as file:
        file.write(b'no JSON\n{"step": "2"}\n\xff\n')
    log.append(3, [one(3)])
    found, damage = read_completions(log.path)
    assert [entry.step for entry in found] == [1, 3]
    assert [entry.partition(":")[0] for entry in damage] == ["line 2", "line 3", "line 4"]


def test_a_line_says_rewards_length_and_end() -> None:
    assert figures(one()) == "reward 1, advantage +0.5, 2 tokens, stopped"
    two = one(rewards={"strict": 1.0, "brief": -0.25}, reward=0.75, tokens=1, ended="cut", advantage=0.0)
    assert figures(two) == "reward 0.75 (strict 1, brief -0.25), advantage 0, 1 token, cut"
    turns = [Turn(by="model", tokens=3, text="call"), Turn(by="environment", tokens=4, text="told")]
    episode = one(ended="failed", reward=None, rewards={"environment": None}, advantage=None, calls=1, turns=turns,
                  turns_in_all=2)  # fmt: skip
    assert figures(episode) == "reward none, 2 tokens, the environment failed, 1 turn, 1 call"


def test_no_text_ends_the_block_that_tensorboard_shows_it_in() -> None:
    shown = as_markdown(one(completion="```\n# a heading\n\nend", prompt=""))
    assert "    ```\n    # a heading\n    \n    end" in shown
    turns = [Turn(by="model", tokens=3, text="call"), Turn(by="environment", tokens=4, text="told")]
    assert "environment:\n\n    told" in as_markdown(one(turns=turns, turns_in_all=2, calls=1))
