"""Before and after on the held-out rows: the loss of both models, and their answers side by side."""

from dataclasses import dataclass
from typing import Any

from nemotron_app.report.wording import CONTROL, plain_turns
from nemotron_data.formats.json_lines import read_lines
from nemotron_shared.artifacts import Artifact
from nemotron_shared.atomic import read_json

TASK = "held_out"
MOST_CHARACTERS = 200


@dataclass(frozen=True)
class Comparison:
    """What `results.json` says of the two models; `answers` pairs a question with what each wrote."""

    scores: list[dict[str, Any]]
    difference: dict[str, Any] | None
    answers: list[dict[str, str]]

    @classmethod
    def read(cls, results: Artifact) -> "Comparison":
        """From an artifact of the evaluation."""
        content = read_json(results.path / "results.json")
        scores = [entry for entry in content["scores"] if entry["task"] == TASK]
        files = [results.path / "samples" / entry["model"] / f"{TASK}.jsonl" for entry in scores]
        before, *_, after = ([line.value() for line in read_lines(file)] for file in files)
        answers = [
            {"question": old["question"], "expected": old["expected"], "before": old["output"], "after": new["output"]}
            for old, new in zip(before, after, strict=True)
            if "output" in old
        ]
        return cls(scores, next((one for one in content["comparisons"] if one["task"] == TASK), None), answers)

    def as_json(self) -> dict[str, Any]:
        """For a program."""
        return {"scores": self.scores, "difference": self.difference, "answers": self.answers}

    def lines(self, prepared: Artifact) -> list[str]:
        """For people.

        Args:
            prepared: the data; it may have held nothing back.
        """
        held_back = set(prepared.manifest.metadata["splits"]) & {"valid", "test"}
        which = "rows that were held out" if held_back else "rows, all of which were trained on"
        shown = []
        for answer in self.answers:
            shown += ["", f"  {_short(plain_turns(answer['question']), end=True)}"]
            shown += [f"    {name:<9} {_short(answer[name])}" for name in ("expected", "before", "after")]
        first, last = self.scores[0], self.scores[-1]
        loss = f"bits per byte of {last['n']} {which}: {first['value']:.3f} before, {last['value']:.3f} after"
        if self.difference is not None:
            low, high = self.difference["ci95"]
            loss += f" (difference {self.difference['difference']:+.3f}, 95% {low:+.3f} to {high:+.3f})"
        return [loss, *shown]


def _short(text: str, *, end: bool = False) -> str:
    words = " ".join(CONTROL.sub(" ", text).split())
    if len(words) <= MOST_CHARACTERS:
        return words
    return f"… {words[-MOST_CHARACTERS:]}" if end else f"{words[:MOST_CHARACTERS]} …"
