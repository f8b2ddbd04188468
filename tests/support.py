"""How the tests of the whole project name the commands that a user would type."""

import json
import subprocess
import sys
from pathlib import Path
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


def last_json(result: "subprocess.CompletedProcess[str]") -> Any:
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
