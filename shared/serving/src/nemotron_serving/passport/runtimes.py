"""Runtimes in environments of their own: each is a program that answers the same questions about an exported model.

    found = through(LLAMA_CPP, Path("my-model-Q8_0.gguf"), prompts, held, texts)
    found.readings.logps["random tokens"], found.texts[0]

A program is started with the Python of its environment, and can import nothing of ours. It is given a JSON file with
the questions, and writes an .npz file with the answers.
"""

import json
import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from nemotron_serving.passport.numbers import GREEDY, Readings
from nemotron_serving.passport.rows import Row
from nemotron_shared.errors import UserError
from nemotron_shared.runtime.environments import environment_of


@dataclass(frozen=True)
class Runtime:
    """A runtime.

    Attributes:
        name: as users know it.
        environment: what `nemotron engine install` calls it.
        program: what is started there: `program read MODEL ASKED.json FOUND.npz [ADAPTER]`.
    """

    name: str
    environment: str
    program: Path

    @property
    def python(self) -> Path | None:
        """The Python to start it with; None if it is not installed."""
        environment = environment_of(self.environment)
        return environment.programs / "python" if environment and environment.programs else None

    @property
    def missing(self) -> str:
        """Said on a page where it is not installed."""
        return f"{self.name} is not installed: nemotron engine install {self.environment}"


PROGRAMS = Path(__file__).parent.parent
LLAMA_CPP = Runtime("llama.cpp", "libllama", PROGRAMS / "gguf_run.py")
VLLM = Runtime("vllm", "vllm_cpu", PROGRAMS / "vllm_run.py")


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
    runtime: Runtime, model: Path, prompts: dict[str, list[int]], held: Sequence[Row], texts: Sequence[str] = (),
    speed: int = 0, adapter: Path | None = None,
) -> Found:  # fmt: skip
    """Ask a runtime that is installed.

    Args:
        speed: tokens of an answer that is timed.
        adapter: what vLLM adds to the model.

    Raises:
        UserError: it cannot load or run the model; the message ends with what it said.
    """
    assert runtime.python is not None
    rows = [[row.ids.tolist(), row.learnt.tolist()] for row in held]
    with TemporaryDirectory() as folder:
        asked, answered = Path(folder) / "asked.json", Path(folder) / "found.npz"
        questions = {"prompts": prompts, "greedy": GREEDY, "held": rows, "texts": list(texts), "speed": speed}
        asked.write_text(json.dumps(questions))
        command = [runtime.python, "-P", runtime.program, "read", model.absolute(), asked, answered]
        command += [adapter.absolute()] if adapter else []
        quiet = os.environ | {"GGML_NO_BACKTRACE": "1"}  # else a failed assertion starts a debugger
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", check=False, cwd=folder, env=quiet
        )
        if done.returncode:
            raise UserError(last_words(done, runtime.name), "look at the export, or run it with another runtime")
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


def last_words(done: "subprocess.CompletedProcess[str]", program: str) -> str:
    lines = [line.strip().removeprefix("[rank0]: ") for line in done.stderr.splitlines() if line.strip()]
    if done.returncode < 0:
        return f"{program} was ended by signal {-done.returncode}: {' '.join(lines[-1:])}"
    return lines[-1] if lines else f"{program} ended with exit code {done.returncode}"


def _normalised(logits: np.ndarray) -> np.ndarray:
    """Log-probabilities in float64 of logits, or of log-probabilities (tokens, vocabulary)."""
    scores = logits.astype(np.float64)
    scores -= scores.max(-1, keepdims=True)
    return scores - np.log(np.exp(scores).sum(-1, keepdims=True))
