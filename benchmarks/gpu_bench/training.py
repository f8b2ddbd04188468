"""Training cases: model, engine, the command that runs them, and the outcome."""

import json
import random
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpu_bench import commands, flops, outcome
from gpu_bench.commands import Clock, Ended
from gpu_bench.outcome import Outcome

ENGINES = ("transformers", "automodel")
MODULES = {"transformers": ["stages.sft.train", "transformers"], "automodel": ["stages.sft.train", "nemo_automodel"]}
AFTERWARDS = 15.0
"""Seconds reserved for the report."""
GRPO_SHARE = 60.0
"""Seconds reserved for GRPO, if it can run."""
LEAST = 20.0
"""Cases are not started with fewer seconds left."""
WORDS = ("goat", "Oster", "saw", "red", "boat", "near", "old", "mill", "and", "went", "home", "before", "dark", "again")


@dataclass(frozen=True)
class Model:
    """An architecture, and rows that suit it."""

    name: str
    architecture: str
    row_tokens: int
    rows: int
    """Per optimizer step, in one forward pass."""
    lr: float


@dataclass(frozen=True)
class Case:
    model: Model
    engine: str
    dtype: str
    steps: int
    seconds: float
    """Time limit of this case."""

    @property
    def name(self) -> str:
        return f"{self.model.name} {self.engine} {self.dtype}"


HYBRID = str(Path(__file__).resolve().parent / "super3_1b.yaml")
TINY = Model("tiny", "super3_tiny", 2048, 8, 2e-3)
SUPER3_1B = Model("super3-1b", HYBRID, 4096, 2, 2e-4)
CASES = (
    Case(TINY, "transformers", "bfloat16", 300, 60),
    Case(TINY, "automodel", "bfloat16", 300, 60),
    Case(SUPER3_1B, "transformers", "bfloat16", 200, 100),
    Case(SUPER3_1B, "automodel", "bfloat16", 200, 100),
    Case(TINY, "transformers", "float32", 300, 60),
    Case(TINY, "automodel", "float32", 300, 60),
    Case(SUPER3_1B, "transformers", "float32", 30, 75),
)
# For laptops: runs all steps of the cases to check that they work; the figures are meaningless.
REHEARSAL_MODEL = Model("tiny", "super3_tiny", 128, 4, 2e-3)
REHEARSAL = tuple(Case(REHEARSAL_MODEL, engine, "bfloat16", 12, 120) for engine in ENGINES)
REHEARSAL += (Case(REHEARSAL_MODEL, "transformers", "float32", 12, 120),)


@dataclass
class Bench:
    """One run of the benchmark."""

    work: Path
    """Data, runs, models and logs."""
    pythons: dict[str, str]
    """Interpreter of each engine."""
    problems: dict[str, list[str]]
    """Why an engine cannot run here; empty if it can."""
    clock: Clock
    on_gpu: bool
    peak_flops: float | None
    """Dense bfloat16 peak of the GPU in operations per second, or None if unknown."""

    @property
    def home(self) -> Path:
        return self.work / "home"


def write_chats(path: Path, count: int = 1500) -> Path:
    """Write reproducible chats with answers of 30 to 1500 words; the synthetic rows are only a line each."""
    draw = random.Random(0)
    with path.open("w", encoding="utf-8") as file:
        for number in range(count):
            length = min(1500, max(30, int(draw.lognormvariate(5.0, 0.8))))
            turns = {"user": f"Tell story number {number}.", "assistant": " ".join(draw.choices(WORDS, k=length))}
            messages = [{"role": role, "content": content} for role, content in turns.items()]
            file.write(json.dumps({"messages": messages}) + "\n")
    return path


def prepare_data(bench: Bench, model: Model) -> Path | str:
    """Prepare packed rows for a model as an artifact; returns its training file, or why there is none."""
    family, chats = data_family(model), bench.work / "chats.jsonl"
    if not chats.is_file():
        write_chats(chats)
    settings = [f"run.home={bench.home}", f"run.family={family}", f"data_prep.source={chats}",
                f"data_prep.pack_size={model.row_tokens}", "data_prep.split={train:0.9,valid:0.1,test:0}",
                "data_prep.max_lost=1"]  # fmt: skip
    command = [bench.pythons["transformers"], "stages/sft/data_prep.py", "-c", "tiny", *settings]
    ended = commands.run(command, max(1.0, bench.clock.left()), bench.work / f"data-{model.name}.log")
    if ended.code:
        return f"data preparation ended with {ended.code}: {commands.last_words(ended.output)}"
    return max((bench.home / "artifacts" / f"{family}-sft-data").glob("v*")) / "train.parquet"


def data_family(model: Model) -> str:
    return f"rows-{model.row_tokens}"


def family_of(case: Case) -> str:
    return case.name.replace(" ", "-")


def command_of(bench: Bench, case: Case, memory: Path) -> list[str]:
    """The stage's own training command. Trains all weights, so that the engines do the same work."""
    model = case.model
    settings = [
        "-c", "tiny", f"engine={case.engine}", f"engine.dtype={case.dtype}", f"run.home={bench.home}",
        f"run.family={family_of(case)}", f"run.data={data_family(model)}-sft-data:latest", "run.missing_data=error",
        "run.model=null", "run.threads=null", f"model.architecture={model.architecture}",
        f"train.train_iters={case.steps}", f"train.global_batch_size={model.rows}", "train.micro_batch_size=null",
        f"train.eval_interval={case.steps}", f"train.eval_rows={model.rows}",
        f"optimizer.lr={model.lr}", f"optimizer.min_lr={model.lr / 10}",
        f"checkpoint.save_interval={case.steps}", "checkpoint.most_recent_k=1", "logger.tensorboard=false",
    ]  # fmt: skip
    if case.engine == "automodel":
        settings.append("engine.peft=null")
        if case.dtype == "bfloat16" and bench.on_gpu:
            settings.append("engine.backend.experts=torch_mm")  # the loop over experts is only a fallback
    return [bench.pythons[case.engine], str(commands.PROGRAMS / "measured_stage.py"), str(memory), "sft", *settings]


def run_case(bench: Bench, case: Case) -> Outcome:
    """Run a case within its own and the benchmark's time limit."""
    if bench.problems[case.engine]:
        return Outcome(case.name, "not run", "; ".join(bench.problems[case.engine]))
    for_grpo = 0 if bench.problems["vllm"] else GRPO_SHARE
    limit = min(case.seconds, bench.clock.left() - AFTERWARDS - for_grpo)
    if limit < LEAST:
        return Outcome(case.name, "not run", f"the time limit of {bench.clock.minutes:g} minutes was reached")
    memory = bench.work / f"{family_of(case)}.memory.json"
    command = command_of(bench, case, memory)
    ended = commands.run(command, limit, bench.work / f"{family_of(case)}.log")
    return judge(case, ended, read_entries(bench, case), memory)


def read_entries(bench: Bench, case: Case) -> list[dict[str, Any]]:
    """The case's metrics.jsonl; empty if training did not begin."""
    files = sorted((bench.home / "runs").glob(f"{family_of(case)}-sft-model-*/metrics.jsonl"))
    lines = files[-1].read_text(encoding="utf-8").splitlines() if files else []
    return [json.loads(line) for line in lines]


def judge(case: Case, ended: Ended, entries: Sequence[dict[str, Any]], memory: Path) -> Outcome:
    """Figures of a run that ended, and the meaning of its exit."""
    speed = outcome.speed_of(entries)
    figures: dict[str, Any] = {"losses": outcome.losses_of(entries), "kernels": kernels_line(ended.output)}
    figures["command_seconds"] = round(ended.seconds, 1)
    if speed:
        figures |= speed._asdict()
    if memory.is_file():
        figures |= json.loads(memory.read_text(encoding="utf-8"))
    if not ended.in_time:
        what = f"{len(figures['losses'])} of {case.steps} steps in {ended.seconds:.0f} s"
        return Outcome(case.name, "cut short" if speed else "not run", what, figures if speed else {})
    if ended.code:
        return Outcome(case.name, "failed", f"exit code {ended.code}: {commands.last_words(ended.output)}", figures)
    return Outcome(case.name, "done", "", figures)


def kernels_line(output: str) -> str:
    """Which Mamba code ran, as reported by the run."""
    lines = [line.partition("mamba: ")[2] for line in output.splitlines() if line.startswith("mamba: ")]
    return lines[0] if lines else "not said"


def add_utilisation(found: Outcome, sizes: flops.Sizes, peak: float | None) -> None:
    """Add the MFU, for bfloat16 only, because the peak is for bfloat16."""
    if "tokens_per_second" in found.figures:
        rate = found.figures["tokens_per_second"]
        found.figures["model_flops_per_second"] = rate * sizes.operations.per_training_token()
        found.figures["mfu"] = flops.utilisation(rate, sizes.operations, peak) if "bfloat16" in found.name else None


def model_sizes(model: Model, train_file: Path) -> flops.Sizes:
    """Parameters and operations of a model on its rows; the tiny one has the vocabulary of its tokenizer."""
    from transformers import AutoTokenizer, NemotronHConfig

    from nemotron_engines.modeling.architecture import load_architecture

    tokenizer = AutoTokenizer.from_pretrained(train_file.parent / "tokenizer", local_files_only=True)
    fields = {"vocab_size": len(tokenizer)} | load_architecture(model.architecture, {})
    return flops.sizes_of(NemotronHConfig(**fields), flops.keys_per_token(flops.packed_document_lengths(train_file)))


def forget(bench: Bench, case: Case) -> None:
    """Remove a case's checkpoints and model (20 GB for the larger model) once its figures have been read."""
    family = family_of(case)
    for folder in [
        *(bench.home / "runs").glob(f"{family}-sft-model-*"),
        bench.home / "artifacts" / f"{family}-sft-model",
    ]:
        shutil.rmtree(folder, ignore_errors=True)
