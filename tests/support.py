"""How the tests of the whole project name the commands that a user would type."""

import contextlib
import importlib
import io
import json
import os
import select
import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from subprocess import CompletedProcess
from tempfile import TemporaryFile
from typing import IO, Any

from nemotron_data.tokenizers.tiny import save_tokenizer
from nemotron_engines.modeling.architecture import load_architecture
from nemotron_shared.config.schema import RandomModelSection

ROOT = Path(__file__).parent.parent
STAGES = ("pretrain", "sft", "rl", "eval")
SHARED = {"shared": "core"} | {name: name for name in ("data", "cluster", "engines", "app", "serving", "prove")}
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


def call_here(command: Sequence[str], stdout: IO[bytes] | None = None, meanwhile: object = None) -> int:
    """Run `python -m stages.sft.train ...` in this process, which saves a second for each of many commands."""
    assert command[1] == "-m"
    said = io.StringIO()
    with contextlib.redirect_stdout(said) if stdout is not None else contextlib.nullcontext():
        code = importlib.import_module(command[2]).STEP.main(command[3:])
    if stdout is not None:
        stdout.write(said.getvalue().encode())
    return code


class Forked:
    """A command in a copy of a process that has imported everything, and the part of `Popen` that tests use."""

    def __init__(
        self, command: Sequence[str], cwd: Path, env: Mapping[str, str], stdout: IO, stderr: IO, group: bool = False
    ) -> None:
        """Args: group: the command leads a process group of its own."""
        own_program = command[1].endswith(".py") and "stages" not in command[1]
        trains = own_program or any("train" in word for word in command[1:3])
        kind = "heavy" if trains and not {"--dry-run", "-d"} & set(command) else "light"
        request = {"argv": list(command), "cwd": str(cwd), "env": dict(env) | _servers(), "group": group}
        self.connection = socket.socket(socket.AF_UNIX)
        self.connection.connect(str(Path(_servers()["FORK_SERVERS"]) / kind))
        socket.send_fds(self.connection, [json.dumps(request).encode() + b"\n"], [stdout.fileno(), stderr.fileno()])
        self.answers = self.connection.makefile()
        self.pid = int(self.answers.readline())
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """The exit code; None while the command runs."""
        ready, _, _ = select.select([self.connection], [], [], 0)
        return self.wait() if ready else self.returncode

    def wait(self) -> int:
        """Wait for the end. Returns the exit code, negative for a signal, as `Popen` does."""
        if self.returncode is None:
            self.returncode = int(self.answers.readline())
            self.connection.close()
        return self.returncode

    def send_signal(self, number: int) -> None:
        """To the command alone; nothing happens when it has ended, as with `Popen`."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def kill_group(self) -> bool:
        """SIGKILL to the command and all that it started; False when it had ended by itself."""
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        return self.wait() == -signal.SIGKILL


def _servers() -> dict[str, str]:
    return {"FORK_SERVERS": os.environ["FORK_SERVERS"], "PYTHONPATH": os.environ.get("PYTHONPATH", "")}


def can_be_forked(command: Sequence[str]) -> bool:
    """Whether it is `nemotron` or the script of a step: their copies behave as new processes do."""
    program, first, *rest = command
    module = rest[0] if first == "-m" else ""
    here = first.endswith(".py") or module == "nemotron_app.main" or module.startswith("stages.")
    return program == sys.executable and here


def run_forked(command: Sequence[str], cwd: Path, env: Mapping[str, str]) -> "CompletedProcess[str]":
    """Run a command in a copy of a process that has imported everything, and capture what it says."""
    with TemporaryFile("w+") as stdout, TemporaryFile("w+") as stderr:
        code = Forked(command, cwd, env, stdout, stderr).wait()
        stdout.seek(0)
        stderr.seek(0)
        return CompletedProcess(command, code, stdout.read(), stderr.read())


def write_model(folder: Path) -> None:
    """As much of a model folder as can be looked at before a start: the tiny architecture and a single weight."""
    header = json.dumps({"weight": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
    (folder / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(4))
    (folder / "config.json").write_text(json.dumps(load_architecture("super3_tiny", {}) | {"vocab_size": 1024}))


def make_model(folder: Path) -> None:
    """A whole model folder: the tiny architecture with random weights, and its tokenizer."""
    from nemotron_engines.modeling.build import save_random_model

    folder.mkdir(exist_ok=True)
    save_tokenizer(folder)
    save_random_model(RandomModelSection(architecture="super3_tiny", overrides={}, tokenizer="tiny"), folder, 7, folder)


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
