"""Runtimes in environments of their own: each is a program that answers the same questions about an exported model.

    found = through(LLAMA_CPP, Path("my-model-Q8_0.gguf"), prompts, held, texts)
    found.readings.logps["random tokens"], found.texts[0]

A program is given a JSON file with the questions, and writes an .npz file with the answers.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from nemotron_serving.passport.numbers import GREEDY, Readings
from nemotron_serving.passport.rows import Row
from nemotron_serving.programs import Program


@dataclass(frozen=True)
class Found:
    """What a runtime makes of the questions.

    Attributes:
        texts: token ids of each text.
        speed: tokens per second of processor time, of one answer to the first prompt; 0 if it was not asked for.
        patch: what of the runtime was replaced by code of ours, if anything.
    """

    readings: Readings
    texts: list[list[int]]
    speed: float
    patch: str


def through(
    runtime: Program, model: Path, prompts: dict[str, list[int]], held: Sequence[Row], texts: Sequence[str] = (),
    speed: int = 0, adapter: Path | None = None,
) -> Found:  # fmt: skip
    """Ask a runtime that is installed.

    Args:
        speed: tokens of an answer that is timed.
        adapter: what vLLM adds to the model.

    Raises:
        UserError: it cannot load or run the model; the message ends with what it said.
    """
    rows = [[row.ids.tolist(), row.learnt.tolist()] for row in held]
    with TemporaryDirectory() as folder:
        work = Path(folder)
        asked, answered = work / "asked.json", work / "found.npz"
        questions = {"prompts": prompts, "greedy": GREEDY, "held": rows, "texts": list(texts), "speed": speed}
        asked.write_text(json.dumps(questions))
        words = [model.absolute(), asked, answered, *([adapter.absolute()] if adapter else [])]
        runtime.run("read", *words, remedy="look at the export, or run it with another runtime", cwd=work)
        with np.load(answered) as found:
            return Found(
                Readings(
                    {name: _normalised(found[f"logits {name}"]) for name in prompts},
                    {name: found[f"greedy {name}"].tolist() for name in prompts},
                    found["held"],
                ),
                [found[f"text {number}"].tolist() for number in range(len(texts))],
                float(found["speed"]) if speed else 0.0,
                str(found["patch"]) if "patch" in found else "",
            )


def _normalised(logits: np.ndarray) -> np.ndarray:
    """Log-probabilities in float64 of logits, or of log-probabilities (tokens, vocabulary)."""
    scores = logits.astype(np.float64)
    scores -= scores.max(-1, keepdims=True)
    return scores - np.log(np.exp(scores).sum(-1, keepdims=True))
