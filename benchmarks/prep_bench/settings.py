"""Shared by the sections of the benchmark: folders, programs, the corpus, and our own command lines."""

import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prep_bench.contest import Contestant
from prep_bench.process_tree import Usage

REPOSITORY = Path(__file__).resolve().parents[2]
PROGRAMS = Path(__file__).resolve().parent / "programs"
QUIET = {"TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1", "PYTHONWARNINGS": "ignore"}
Check = Callable[[Contestant, Usage], Any]


@dataclass(frozen=True)
class Bench:
    """One run of the benchmark."""

    work: Path
    """Corpus, tokenizers and outputs."""
    corpus: Path
    """Folder of corpus.jsonl and corpus.parquet."""
    documents: int
    text_bytes: int
    tokenizers: dict[str, Path]
    peer_python: str
    """Interpreter of the peers."""
    megatron: Path | None
    rounds: int
    slow_rounds: int
    workers: int
    ray: bool
    rehearsal: bool = False
    """Only a few rows, to check that everything runs and is compared; speeds are meaningless."""

    @property
    def jsonl(self) -> Path:
        return self.corpus / "corpus.jsonl"

    def output(self, name: str) -> Path:
        """Output folder for a program; its name needs no quotes on a command line."""
        return self.work / "output" / re.sub(r"\W+", "-", name)

    def ours(self, stage: str, name: str, settings: dict[str, Any], check: Check | None = None) -> Contestant:
        """A stage's data preparation as a user runs it, from the command line to the published artifact."""
        home = self.output(name)
        split = {f"data_prep.split.{name}": share for name, share in (("train", 1), ("valid", 0), ("test", 0))}
        common = {"run.home": home, "run.force": "true", "run.family": "super3"}
        words = [f"{key}={value}" for key, value in {**split, **common, **settings}.items()]
        command = [sys.executable, f"stages/{stage}/data_prep.py", *words]
        return Contestant(name, command, home, check or (lambda contestant, usage: None), work_seconds, peer=False)

    def peer(
        self, name: str, program: str, arguments: list[Any], check: Check, timer: Any = None, **more: Any
    ) -> Contestant:
        """A program of `programs/` under the peers' interpreter, with arguments after its name."""
        command = [self.peer_python, str(PROGRAMS / program), *map(str, arguments)]
        timer = timer or (lambda contestant, usage: None)
        return Contestant(name, command, self.output(name), check, timer, QUIET, **more)

    def lacks(self, *modules: str) -> str | None:
        """Why a peer that needs these modules cannot be run, or None."""
        missing = [module for module in modules if not has_module(self.peer_python, module)]
        return f"not installed: {', '.join(missing)}" if missing else None


def has_module(python: str, module: str) -> bool:
    """Whether an interpreter finds a module, and its parent packages."""
    question = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({module!r}) is None)"
    return subprocess.run([python, "-c", question], cwd="/", stderr=subprocess.DEVNULL, check=False).returncode == 0


def artifact(home: Path) -> Path:
    """The only published artifact folder below a home; raises `FileNotFoundError`."""
    found = sorted((home / "artifacts").glob("*/v*/manifest.json"))
    if not found:
        raise FileNotFoundError(f"{home}: nothing was published")
    return found[-1].parent


def work_seconds(contestant: Contestant, usage: Usage) -> float | None:
    """Seconds of our work phase, if the stage prints them: "read 205.0 MB in 1.08 s: ..."."""
    found = re.findall(r"\b(?:[kM]B|bytes) in ([\d.]+) s: ", usage.output)
    return float(found[-1]) if found else None
