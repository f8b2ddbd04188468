"""Helpers to run commands in the tests of all members."""

import contextlib
import importlib
import io
import json
import os
import re
import select
import signal
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from subprocess import CompletedProcess, TimeoutExpired
from tempfile import TemporaryFile
from typing import IO, Any

from nemotron_data.tokenizers.tiny import save_tokenizer
from nemotron_engines.modeling.architecture import load_architecture
from nemotron_shared.config.schema import RandomModelSection
from nemotron_shared.tracking.trackers import KEYS

ROOT = Path(__file__).parent.parent
STAGES = ("pretrain", "sft", "rl", "eval")
TORCHRUN = "torch.distributed.run"
SHARED = {"shared": "core"} | {name: name for name in ("data", "cluster", "engines", "app", "serving")}
"""Shared members, named as in `nemotron-NAME`, and their folders below `shared/`."""
MEMBERS = (*SHARED, *STAGES)


def member_folder(member: str) -> Path:
    """Folder of a workspace member."""
    return ROOT / "shared" / SHARED[member] if member in SHARED else ROOT / "stages" / member


def script(stage: str, verb: str = "train") -> list[str]:
    """`python stages/<stage>/<verb>.py`."""
    return [sys.executable, str(ROOT / "stages" / stage / f"{verb}.py")]


def torchrun(stage: str, processes: int = 1) -> list[str]:
    """`torchrun stages/<stage>/train.py` on this machine."""
    launcher = [sys.executable, "-m", TORCHRUN, "--standalone", f"--nproc-per-node={processes}"]
    return [*launcher, str(ROOT / "stages" / stage / "train.py")]


def nemotron(*words: str) -> list[str]:
    """The console command."""
    return [sys.executable, "-m", "nemotron_app.main", *words]


def argv(words: Sequence[str]) -> list[str]:
    """Process arguments for a command as a user types it: `nemotron ...`, `python stages/...`, `torchrun stages/...`.

    Scripts that are not in the working folder are taken from the root of the repository.
    """
    program, *rest = words
    if program == "nemotron":
        return nemotron(*rest)
    rest = [str(ROOT / word) if word.startswith("stages/") and word.endswith(".py") else word for word in rest]
    if program == "torchrun":
        # a free port each time, so that two tests can run in parallel
        return [sys.executable, "-m", TORCHRUN, "--standalone", *rest]
    assert program == "python", f"no way to run {program}"
    return [sys.executable, *rest]


def call_here(command: Sequence[str], stdout: IO[bytes] | None = None, libraries: object = None) -> int:
    """Run `python -m stages.sft.train ...` in this process, which saves a second per command."""
    assert command[1] == "-m"
    said = io.StringIO()
    with contextlib.redirect_stdout(said) if stdout is not None else contextlib.nullcontext():
        code = importlib.import_module(command[2]).main(command[3:])
    if stdout is not None:
        stdout.write(said.getvalue().encode())
    return code


class Forked:
    """A command in a fork of a process that has imported everything, with the parts of `Popen` that tests use."""

    def __init__(
        self, command: Sequence[str], cwd: Path, env: Mapping[str, str], stdout: IO, stderr: IO, group: bool = False
    ) -> None:
        """Args: group: make the command lead its own process group."""
        command = last_values(command)
        own_program = command[1].endswith(".py") and "stages" not in command[1]
        trains = own_program or any("train" in word for word in command[1:3])
        trains = trains and not {"--dry-run", "-d"} & set(command)
        kind = "heavy" if trains or {TORCHRUN, "nemotron_shared.engine.torchrun"} & set(command[:3]) else "light"
        request = {"argv": list(command), "cwd": str(cwd), "env": dict(env) | _servers(), "group": group}
        self.connection = socket.socket(socket.AF_UNIX)
        self.connection.connect(str(Path(_servers()["FORK_SERVERS"]) / kind))
        socket.send_fds(self.connection, [json.dumps(request).encode() + b"\n"], [stdout.fileno(), stderr.fileno()])
        self.answers = self.connection.makefile()
        self.pid = int(self.answers.readline())
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Exit code; None while the command runs."""
        ready, _, _ = select.select([self.connection], [], [], 0)
        return self.wait() if ready else self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end. Returns the exit code, negative for a signal, as `Popen` does.

        Raises:
            TimeoutExpired: it has not ended after `timeout` seconds.
        """
        if self.returncode is None:
            if timeout is not None and not select.select([self.connection], [], [], timeout)[0]:
                raise TimeoutExpired("a forked command", timeout)
            self.returncode = int(self.answers.readline())
            self.connection.close()
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Signal only the command; does nothing if it has ended, like `Popen`."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def kill_group(self) -> bool:
        """Kill the command and everything that it started; returns False if it had already ended."""
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        return self.wait() == -signal.SIGKILL


def _servers() -> dict[str, str]:
    return {"FORK_SERVERS": os.environ["FORK_SERVERS"], "PYTHONPATH": os.environ.get("PYTHONPATH", "")}


def can_be_forked(command: Sequence[str]) -> bool:
    """Whether it is `nemotron`, the script of a step or torchrun: forks of these behave like new processes."""
    program, first, *rest = command
    module = rest[0] if first == "-m" else ""
    here = first.endswith(".py") or module in ("nemotron_app.main", TORCHRUN) or module.startswith("stages.")
    return program == sys.executable and here


def run_forked(
    command: Sequence[str], cwd: Path, env: Mapping[str, str], errors: IO | None = None
) -> "CompletedProcess[str]":
    """Run a command in a fork of a process that has imported everything, and capture its output.

    Args:
        errors: a file for what it says on stderr, which is then not captured.
    """
    with TemporaryFile("w+") as stdout, TemporaryFile("w+") as stderr:
        code = Forked(command, cwd, env, stdout, errors or stderr).wait()
        stdout.seek(0)
        stderr.seek(0)
        return CompletedProcess(command, code, stdout.read(), stderr.read())


def write_model(folder: Path) -> None:
    """Write as much of a model folder as checks before a start read: the tiny architecture and a single weight."""
    header = json.dumps({"weight": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
    (folder / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(4))
    fields = {"model_type": "nemotron_h", **load_architecture("super3_tiny", {}), "vocab_size": 1024}
    (folder / "config.json").write_text(json.dumps(fields))


def make_model(folder: Path) -> None:
    """A whole model folder: the tiny architecture with random weights, and its tokenizer."""
    from nemotron_engines.modeling.build import save_random_model

    folder.mkdir(exist_ok=True)
    save_tokenizer(folder)
    save_random_model(RandomModelSection(architecture="super3_tiny", overrides={}, tokenizer="tiny"), folder, 7, folder)


def made_in(home: Path, name: str) -> tuple[list[dict[str, Any]], bytes]:
    """The log without times, and the weights, of the newest version of a model in a store."""
    newest = max(home.glob(f"artifacts/{name}/v*"))
    lines = map(json.loads, (newest / "metrics.jsonl").read_text().splitlines())
    kept = [{name: value for name, value in line.items() if name not in ("seconds", "memory_gb")} for line in lines]
    return kept, (newest / "model.safetensors").read_bytes()


def make_reward_model(folder: Path) -> None:
    """The same with a random score in the place of a language model's output."""
    from nemotron_engines.modeling.build import ONLY_MADE, load_model, save_model
    from nemotron_engines.modeling.scoring import with_score

    below = folder.with_name(f"{folder.name}-below")
    make_model(below)
    folder.mkdir(exist_ok=True)
    save_model(with_score(load_model(below, ONLY_MADE), 1), below, folder)


def last_json(result: "CompletedProcess[str]") -> Any:
    """Parse the JSON result that a command printed."""
    return json.loads(result.stdout)


EPISODES = ("-c", "drawers", "train.train_iters=4", "train.eval_interval=2", "train.eval_rows=8",
            "checkpoint.save_interval=2", "grpo.num_prompts_per_step=4", "data_prep.synthetic_problems=60",
            "scheduler.lr_warmup_iters=0", "logger.tensorboard=false")  # fmt: skip
"""A few steps of RL with an environment, from `learn_to_call_tools`."""


def learn_to_call_tools(home: Path) -> None:
    """Fine-tune a model, in this store, that calls the tools of `drawers`, if not always rightly."""
    from stages.sft.train import main

    words = (
        "-c", "drawers", "train.train_iters=90", "train.global_batch_size=8", "data_prep.synthetic_chats=1500",
        "logger.tensorboard=false",
    )  # fmt: skip
    assert main([*words, f"run.home={home}"]) == 0


SETTING = re.compile(r"\+*[a-z_]\w*(\.\w+)*=")
# Overrides that make a tiny run last seconds, for tests of behaviour rather than learning.
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


def no_wandb(folder: Path) -> dict[str, str]:
    """Variables by which a process finds no key of W&B, nor settings that waive it, whatever this account has.

    Args:
        folder: without files of W&B.
    """
    empty = dict.fromkeys((*KEYS, "WANDB_MODE", "WANDB_BASE_URL"), "")
    return empty | {"NETRC": f"{folder}/none", "WANDB_CONFIG_DIR": str(folder), "WANDB_DIR": str(folder)}


def short(stage: str) -> tuple[str, ...]:
    """`-c tiny` and the overrides that make it short."""
    return ("-c", "tiny", *SHORT[stage])


def last_values(words: Sequence[str]) -> list[str]:
    """Words of a command, of which only the last gives a key its value: a test's own instead of those of `short`."""
    if "--setting" in words:  # of a profile
        return list(words)
    keys = {word.partition("=")[0].lstrip("+"): number for number, word in enumerate(words) if SETTING.match(word)}
    return [
        word
        for number, word in enumerate(words)
        if not SETTING.match(word) or keys[word.partition("=")[0].lstrip("+")] == number
    ]


def last_values_win(main: Callable[[Sequence[str]], int]) -> Callable[[Sequence[str]], int]:
    """A stage's `main` for tests that change what `short` says."""
    return lambda words: main(last_values(words))
