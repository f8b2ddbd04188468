"""Run commands in copies of this process, which has imported everything, and write down what their trainings see.

    made = running.run(Command("stages.sft.train", ("-c", "local", ...)), home, processes=2)
    made.code, made.said, made.records     # records: one for each pass of the first two steps, of all processes

Several processes learn their numbers from variables, as those that torchrun starts. Commands that a command starts in
turn, such as a rehearsal or a step, become copies as well: an import takes longer than all that a cell computes.
"""

import importlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from faults.attempts import rendezvous
from faults.campaign import TRAINING, import_all
from faults.steps import Command, logs_for, start, wait_for

PLUGIN = "matrix_rewards"
REWARD = "vowels"
"""The reward of the matrix: graded, so that the answers of a random model differ."""
RECORDED_STEPS = 2
UNRECORDED = "NEMOTRON_MATRIX_UNRECORDED"
"""Set in a process whose trainings are not written down."""
Plant = Callable[[], None]
"""Puts a fault into the process that will train."""


@dataclass
class Made:
    """How a command ended, what it printed, and the records of its processes."""

    code: int
    said: str
    seconds: float
    records: list[dict[str, Any]] = field(default_factory=list)

    @property
    def error(self) -> str:
        """The line of its error, or the last line."""
        lines = [line for line in self.said.splitlines() if line.strip()]
        return next((line for line in lines if line.startswith("error:")), lines[-1] if lines else "nothing said")


def import_everything(place: Path) -> None:
    """Import what commands need, and install a package with our reward."""
    folder = place / "plugins"
    info = folder / f"{PLUGIN}-1.0.dist-info"
    info.mkdir(parents=True, exist_ok=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {PLUGIN}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[nemotron.rewards]\n{REWARD} = {PLUGIN}:{REWARD}\n")
    (folder / f"{PLUGIN}.py").write_text(
        '"""Share of vowels in an answer."""\n\n\n'
        f"def {REWARD}(completion: str, expected: str) -> float:\n"
        '    return sum(one in "aeiouAEIOU" for one in completion) / len(completion) if completion else 0.0\n'
    )
    sys.path.insert(0, str(folder))
    import torch

    torch.set_num_threads(1)
    import_all(("nemotron_app.main", *TRAINING, "nemotron_serving.model"))


def run(command: Command, home: Path, processes: int = 1, plant: Plant | None = None) -> Made:
    """Run a command to its end, on several processes as torchrun would start them."""
    home.parent.mkdir(parents=True, exist_ok=True)
    logs, began = logs_for(home, processes), time.monotonic()
    variables = rendezvous(processes) if processes > 1 else {}
    records = [home.parent / f"records-{rank}" for rank in range(processes)]
    for file in records:
        file.unlink(missing_ok=True)

    def before(rank: int) -> Callable[[], None]:
        def prepare() -> None:
            if variables:
                os.environ.update({**variables, "RANK": str(rank), "LOCAL_RANK": str(rank)})
            start_copies()
            record_into(records[rank])
            if plant is not None:
                plant()

        return prepare

    pids = [start(command, home, log, None, before(rank)) for rank, log in enumerate(logs)]
    codes = [wait_for(pid, began) for pid in pids]
    for pid in pids:  # each leads a group
        with suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)
    lines = [line for file in records if file.is_file() for line in file.read_text().splitlines()]
    code = next((one for one in codes if one), 0)
    said = "\n".join(log.read_text(errors="replace") for log in logs)
    return Made(code, said, time.monotonic() - began, [json.loads(line) for line in lines])


# What a command starts


def start_copies() -> None:
    """Let this process start copies of itself where it would start Python with our modules."""
    original = subprocess.run

    def captured(command: Any, *args: Any, **options: Any) -> Any:
        module = _module_of(command)
        if module is None or not options.get("capture_output"):
            return original(command, *args, **options)
        with tempfile.TemporaryFile("w+") as stdout, tempfile.TemporaryFile("w+") as stderr:
            variables = {**(options.get("env") or os.environ), UNRECORDED: "1"}  # a rehearsal
            code = copy(module, variables, stdout.fileno(), stderr.fileno())
            stdout.seek(0)
            stderr.seek(0)
            return subprocess.CompletedProcess(command, code, stdout.read(), stderr.read())

    subprocess.run = captured  # ty: ignore[invalid-assignment]
    launch = importlib.import_module("nemotron_app.launch")

    def run_process(command: Sequence[str], stdout: Any = None, libraries: object = None) -> int:
        module = _module_of(command)
        assert module is not None, f"not one of our modules: {command}"
        sys.stdout.flush()
        return copy(module, os.environ, 1 if stdout is None else stdout.fileno(), 2)

    launch.run_process = run_process


def _module_of(command: Any) -> list[str] | None:
    """Module and words of `python ... -m MODULE WORDS`, if the module is ours."""
    words = [str(word) for word in command] if isinstance(command, list | tuple) else []
    if "-m" not in words:
        return None
    found = words[words.index("-m") + 1 :]
    return found if found[0].startswith(("stages.", "nemotron_app.")) else None


def copy(command: Sequence[str], variables: Mapping[str, str], stdout: int, stderr: int) -> int:
    """Run a module in a copy of this process; returns its exit code."""
    sys.stdout.flush()
    sys.stderr.flush()
    if pid := os.fork():
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    code = 1
    try:
        os.dup2(stdout, 1)
        os.dup2(stderr, 2)
        given = dict(variables)
        os.environ.clear()
        os.environ.update(given)
        sys.argv = [command[0], *command[1:]]
        code = importlib.import_module(command[0]).main(list(command[1:])) or 0
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else 1
    except BaseException as error:
        sys.excepthook(type(error), error, error.__traceback__)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code & 0xFF)


# What a training sees


def record_into(file: Path) -> None:
    """Write down the rows of the first steps, what was sampled, and the first values of adapters and scores."""
    from transformers import Trainer

    from stages.rl.engines.trl.scheduled import ScheduledGRPOTrainer

    step, sampled = Trainer.training_step, ScheduledGRPOTrainer._compute_loss

    def note(trainer: Any, what: dict[str, Any]) -> None:
        if UNRECORDED in os.environ:
            return
        with file.open("a", encoding="utf-8") as lines:
            lines.write(json.dumps({"step": trainer.state.global_step, **what}) + "\n")

    def noted_step(self: Any, model: Any, inputs: Any, *args: Any, **options: Any) -> Any:
        if self.state.global_step < RECORDED_STEPS and "labels" in inputs:
            note(self, {"rows": inputs["input_ids"].tolist(), "labels": inputs["labels"].tolist()})
        if self.state.global_step == 0 and UNRECORDED not in os.environ and not hasattr(self, "_noted_first"):
            self._noted_first = True
            save_first(self.accelerator.unwrap_model(model), file.with_name(f"{file.name}.first"))
        return step(self, model, inputs, *args, **options)

    def noted_loss(self: Any, model: Any, inputs: dict[str, Any]) -> Any:
        if self.state.global_step == 0 and model.training:
            for one in completions_of(inputs):
                note(self, one)
        return sampled(self, model, inputs)

    Trainer.training_step = noted_step  # ty: ignore[invalid-assignment]
    ScheduledGRPOTrainer._compute_loss = noted_loss  # ty: ignore[invalid-assignment]


def save_first(model: Any, file: Path) -> None:
    """Values of what is drawn at random before the first step."""
    from safetensors.torch import save_file

    chosen = {
        name.replace(".default", ""): value.detach().float().contiguous().clone()
        for name, value in model.named_parameters()
        if ".lora_" in name or name == "score.weight"
    }
    if chosen:
        save_file(chosen, file)


def completions_of(inputs: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Each completion of a pass, without padding."""
    found, scores = [], inputs["advantages"].view(len(inputs["completion_ids"]), -1)
    own = inputs["completion_mask"] * inputs.get("tool_mask", 1)
    for row in range(len(scores)):
        prompt = inputs["prompt_ids"][row][inputs["prompt_mask"][row].bool()].tolist()
        there = inputs["completion_mask"][row].bool()
        logps = inputs.get("sampling_per_token_logps")
        found.append(
            {
                "prompt": prompt,
                "completion": inputs["completion_ids"][row][there].tolist(),
                "own": own[row][there].tolist(),
                "advantage": float(scores[row, 0]),
                "logps": [] if logps is None else logps[row][own[row].bool()].tolist(),
            }
        )
    return found
