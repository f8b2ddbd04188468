"""How the tests of the whole project name the commands that a user would type."""

import importlib
import json
import multiprocessing
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

ROOT = Path(__file__).parent.parent
STAGES = ("pretrain", "sft", "rl", "eval")
SHARED = {"shared": "core", "data": "data", "engines": "engines", "app": "app"}
"""Shared members, as `nemotron-NAME` calls them, and their folders below `shared/`."""
MEMBERS = (*SHARED, *STAGES)


def member_folder(member: str) -> Path:
    """Where a member of the workspace lies."""
    return ROOT / "shared" / SHARED[member] if member in SHARED else ROOT / "stages" / member


def script(stage: str, verb: str = "train") -> list[str]:
    """`python stages/<stage>/<verb>.py`."""
    return [sys.executable, str(ROOT / "stages" / stage / f"{verb}.py")]


def torchrun(stage: str, processes: int = 1) -> list[str]:
    """`torchrun stages/<stage>/train.py` on this machine."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    return [*launcher, str(ROOT / "stages" / stage / "train.py")]


def nemotron(*words: str) -> list[str]:
    """The console command."""
    return [sys.executable, "-m", "nemotron_app.main", *words]


def argv(words: Sequence[str]) -> list[str]:
    """The process of a command as a reader types it: `nemotron ...`, `python stages/...`, `torchrun stages/...`.

    Scripts are found from the root of the repository where the working folder does not have them.
    """
    program, *rest = words
    if program == "nemotron":
        return nemotron(*rest)
    rest = [str(ROOT / word) if word.startswith("stages/") and word.endswith(".py") else word for word in rest]
    if program == "torchrun":
        # a free port each time, so that two tests can run beside each other
        return [sys.executable, "-m", "torch.distributed.run", "--standalone", *rest]
    assert program == "python", f"no way to run {program}"
    return [sys.executable, *rest]


def call_here(command: Sequence[str], stdout: object = None) -> int:
    """Run `python -m stages.sft.train ...` in this process, which saves a second for each of many commands."""
    assert command[1] == "-m"
    return importlib.import_module(command[2]).STEP.main(command[3:])


def run_forked(words: Sequence[str], cwd: Path, env: Mapping[str, str], outputs: Path) -> "CompletedProcess[str]":
    """Run `nemotron ...` in a fork of a process that has imported everything: a fifth of the time of a new one."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(
        ["nemotron_app.main", *(f"stages.{stage}.{verb}" for stage in STAGES for verb in ("data_prep", "train"))]
    )
    files = outputs / "stdout", outputs / "stderr"
    child = context.Process(target=_run_in_fork, args=(list(words), str(cwd), dict(env), *map(str, files)))
    child.start()
    child.join()
    assert child.exitcode is not None
    return CompletedProcess(words, child.exitcode, *(file.read_text(encoding="utf-8") for file in files))


def _run_in_fork(words: list[str], cwd: str, env: dict[str, str], stdout: str, stderr: str) -> None:
    for number, name in enumerate((stdout, stderr), start=1):
        os.dup2(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env)
    launch = importlib.import_module("nemotron_app.launch")
    launch.run_process = call_here  # the stage's script, too, runs in the fork
    sys.exit(importlib.import_module("nemotron_app.main").main(words))


def last_json(result: "CompletedProcess[str]") -> Any:
    """What a command printed for programs."""
    return json.loads(result.stdout)


# Overrides that make a tiny run last seconds, for tests that look at behaviour and not at what was learned.
SHORT = {
    "pretrain": ("train.train_iters=6", "train.eval_interval=3", "train.eval_rows=8", "checkpoint.save_interval=2",
                 "data_prep.synthetic_documents=400", "logger.tensorboard=false"),
    "sft": ("train.train_iters=6", "train.eval_interval=3", "train.eval_rows=8", "checkpoint.save_interval=2",
            "data_prep.synthetic_chats=400", "logger.tensorboard=false"),
    "rl": ("train.train_iters=4", "train.eval_interval=2", "train.eval_rows=8", "checkpoint.save_interval=2",
           "data_prep.synthetic_problems=60", "grpo.max_new_tokens=8", "grpo.num_prompts_per_step=4",
           "logger.tensorboard=false"),
    "eval": ("data_prep.synthetic_problems=24", "data_prep.synthetic_choices=12", "data_prep.synthetic_texts=8",
             "evaluation.max_new_tokens=8"),
}  # fmt: skip


def short(stage: str) -> tuple[str, ...]:
    """`-c tiny` and the overrides that make it short."""
    return ("-c", "tiny", *SHORT[stage])
