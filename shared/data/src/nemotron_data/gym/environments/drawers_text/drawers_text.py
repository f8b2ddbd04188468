"""The look-up of `drawers` without tools: the model says "find 55" or "open 8", and is told, turn by turn.

    What is the key of 55?   find 55   box 8   open 8   key white   white

The first turn that is neither ends the episode: it is the answer. The worlds are those of `drawers`.
"""

from hashlib import sha256
from typing import Any

COLOURS = ["red", "green", "blue", "yellow", "purple", "grey", "white", "black"]
AGENT = "drawers_text_gymnasium_agent"


class Episode:
    """One episode: `row` has the number of its world, and the expected answer."""

    def __init__(self, row: dict[str, Any]) -> None:
        self.world, self.expected, self.looked = int(row["world"]), str(row["expected_answer"]), False

    def reset(self) -> str | None:
        """Nothing: the question is in the row."""
        return None

    def step(self, text: str) -> dict[str, Any]:
        """What a turn of the model leads to."""
        verb, _, what = text.strip().partition(" ")
        if verb in ("find", "open"):
            self.looked = True
            return {"observation": self._look(verb, what), "reward": 0.0, "terminated": False}
        reward = float(text.strip() == self.expected)
        return {"reward": reward, "terminated": True, "info": {"used_tools": self.looked}}

    def _look(self, verb: str, what: str) -> str:
        if not what.isdigit() or len(what) != (2 if verb == "find" else 1):
            return "nothing"
        if verb == "find":
            return f"box {self._draw(f'name {what}', 10)}"
        return f"key {COLOURS[self._draw(f'box {what}', len(COLOURS))]}"

    def _draw(self, what: str, count: int) -> int:
        return int.from_bytes(sha256(f"{self.world}/{what}".encode()).digest()[:8], "big") % count


def solution(row: dict[str, Any]) -> list[Any]:
    """The model's turns that earn the reward."""
    question, episode = row["responses_create_params"]["input"][0]["content"], Episode(row)
    turns = [f"find {''.join(sign for sign in question if sign.isdigit())}"]
    turns.append(f"open {episode.step(turns[0])['observation'].split()[-1]}")
    return [*turns, episode.step(turns[1])["observation"].split()[-1]]
