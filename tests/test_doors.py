"""Fine-tuning, RL, evaluation, chat, generate and serve make the same ids of the same conversation."""

from collections import Counter
from pathlib import Path

import pytest
from door_templates import TEMPLATES
from doors import through_all

from nemotron_data.chat import confined

DOORS = ("sft", "rl", "evaluation", "chat", "serve")


@pytest.fixture(autouse=True)
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """The templates are ours; that one of somebody else's renders in another process is tested elsewhere."""
    monkeypatch.setattr(confined, "_ours", lambda: frozenset(TEMPLATES.values()))


def check(differing: dict[str, list[str]], used: Counter[str], conversations: int) -> None:
    assert not differing, {name: (len(found), found[:3]) for name, found in differing.items()}
    assert used["conversations"] == conversations
    assert used["refused"] < 0.1 * conversations
    for door in DOORS:
        assert used[door] > 0.25 * conversations, used


def test_some_conversations_through_every_door(tmp_path: Path) -> None:
    assert len(TEMPLATES) >= 30
    check(*through_all(6, tmp_path), conversations=6 * len(TEMPLATES))


@pytest.mark.slow
def test_many_conversations_through_every_door(tmp_path: Path) -> None:
    names = [*list(TEMPLATES)[::2], "deepseek v3", "nemotron super", "chatml hermes kept"]
    check(*through_all(500, tmp_path, names), conversations=500 * len(names))
