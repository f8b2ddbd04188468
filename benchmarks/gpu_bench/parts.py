"""The parts of the GPU benchmark in order, each a program with its own time limit."""

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from gpu_bench import commands

HYBRID = str(Path(__file__).resolve().parent / "super3_1b.yaml")
WORDS = ("goat", "Oster", "saw", "red", "boat", "near", "old", "mill", "and", "went", "home", "before", "dark", "again")


@dataclass(frozen=True)
class Part:
    """One program of the benchmark.

    Attributes:
        letter: its group: training, lora, answers, differences, more.
        engine: whose environment it runs in; "before" is transformers with the sources of --before.
        program: a file of programs/.
        words: of its command line, after the file for its result.
        seconds: time limit, counted from the program's start on the GPU.
        tokens: of a step, for tokens per second.
        environment: variables in addition to the engine's.
    """

    letter: str
    name: str
    engine: str
    program: str
    words: Sequence[str]
    seconds: float
    tokens: int = 0
    environment: dict[str, str] = field(default_factory=dict)

    @property
    def file(self) -> str:
        """Its name in file names."""
        return "-".join("".join(one if one.isalnum() else " " for one in self.name).split())


@dataclass(frozen=True)
class Sizes:
    """What differs between a measurement and its rehearsal on a CPU."""

    hybrid: str
    nano: str
    row: int
    lora_row: int
    lora_rows: int
    steps: Sequence[str]
    lora_steps: Sequence[str]
    answers: Sequence[str]
    layers: Sequence[str]
    settings: Sequence[str] = ()


MEASURED = Sizes(
    HYBRID, "nano3", 8192, 4096, 2,
    ("--warm-up", "8", "--steps", "24", "--profiled", "3"), ("--warm-up", "3", "--steps", "8", "--profiled", "2"),
    ("--new", "128"), (), ("++model.overrides.vocab_size=131072",),
)  # fmt: skip
REHEARSED = Sizes(
    "super3_tiny", "nano3_tiny", 256, 128, 2,
    ("--warm-up", "2", "--steps", "4", "--profiled", "2"), ("--warm-up", "1", "--steps", "2", "--profiled", "1"),
    ("--new", "4", "--serve", "1", "2", "--sample", "2"), ("--rows", "2", "--length", "24"),
    ("++model.overrides.vocab_size=4096",),
)  # fmt: skip


def parts(home: Path, sizes: Sizes, *, before: bool, on_gpu: bool) -> list[Part]:
    """All parts, in the order in which they are worth the time."""
    hybrid = str(sizes.hybrid)
    common = [f"run.home={home}", "run.missing_data=error", "run.threads=null", "logger.tensorboard=false",
              "checkpoint.save_interval=100000", "train.eval_interval=100000", "train.train_iters=100000"]  # fmt: skip
    data = [*common, f"run.data={data_family(sizes.row)}-sft-data:latest", "run.model=null"]
    sft = [*data, "-c", "tiny", f"model.architecture={hybrid}", "engine.dtype=bfloat16", "train.global_batch_size=1",
           "train.micro_batch_size=null", "optimizer.lr=1e-4", "optimizer.min_lr=1e-5"]  # fmt: skip
    # Automodel on one process knows no mixed precision: it computes in the type of its weights.
    automodel = [*sft, "engine=automodel", "engine.peft=null", "engine.weights_dtype=bfloat16"]
    automodel += ["engine.backend.experts=torch_mm"] if on_gpu else []  # else a loop over the experts

    def trained(letter: str, name: str, engine: str, words: Sequence[str], seconds: float, stage: str = "sft") -> Part:
        words = [*sizes.steps, "--", stage, *words, f"run.family={name.replace(' ', '-')}"]
        return Part(letter, name, engine, "measured_stage", words, seconds, sizes.row)

    lora = [*common, f"run.data={data_family(sizes.lora_row)}-sft-data:latest",
            "-c", "nano3_lora_one_gpu",
            "run.model=null", f"model.architecture={sizes.nano}", *sizes.settings,
            f"train.global_batch_size={sizes.lora_rows}", "train.micro_batch_size=1"]  # fmt: skip
    lora_words = [*sizes.lora_steps, "--weights-on-device", "--", "sft", *lora]
    found = [
        trained("training", "transformers", "transformers", [*sft, "engine=transformers"], 110),
        *([trained("training", "before", "before", [*sft, "engine=transformers"], 110)] if before else []),
        trained("training", "automodel", "automodel", automodel, 150),
        Part("lora", "nano lora", "transformers", "measured_stage", lora_words, 150, sizes.lora_row * sizes.lora_rows),
        Part("answers", "answers", "transformers", "answers", ["--architecture", hybrid, *sizes.answers], 100),
        *[
            Part("differences", f"layers {dtype} {scan}", "transformers", "layers",
                 ["--architecture", hybrid, "--dtype", dtype, *sizes.layers], 60,
                 environment={"TRITON_F32_DEFAULT": scan})
            for dtype, scan in (("float32", "tf32"), ("float32", "ieee"), ("bfloat16", "tf32"))
        ],
        replace(
            trained("more", "documents by mask", "transformers", [*sft, "engine=transformers"], 60),
            environment={"GPU_BENCH_MASK": "1"},
        ),
        trained("more", "fsdp2", "transformers", [*sft, "engine=transformers", "engine.strategy=fsdp2"], 60),
    ]  # fmt: skip
    grpo = ["-c", "tiny", *common, "run.model=null", f"run.data={RL_FAMILY}-rl-data:latest", "engine.dtype=bfloat16",
            f"model.architecture={hybrid}", "run.family=grpo"]  # fmt: skip
    few = ["--warm-up", "1", "--steps", "3", "--profiled", "1"]
    found.append(Part("more", "grpo", "transformers", "measured_stage", [*few, "--", "rl", *grpo], 90))
    return found


RL_FAMILY = "questions"


def data_family(row: int) -> str:
    return f"rows-{row}"


def prepare(python: str, work: Path, sizes: Sizes, environment: dict[str, str], *, questions: bool) -> str | None:
    """Packed rows of both lengths, and questions if wanted, in the store of `work`; says what went wrong."""
    chats = write_chats(work / "chats.jsonl")
    for row in (sizes.row, sizes.lora_row):
        settings = [f"data_prep.source={chats}", f"data_prep.pack_size={row}", f"run.family={data_family(row)}",
                    "data_prep.split={train:0.98,valid:0.02,test:0}", "data_prep.max_lost=1"]  # fmt: skip
        if problem := prepare_stage(python, work, "sft", settings, environment):
            return problem
    return prepare_stage(python, work, "rl", [f"run.family={RL_FAMILY}"], environment) if questions else None


def prepare_stage(
    python: str, work: Path, stage: str, settings: Sequence[str], environment: dict[str, str]
) -> str | None:
    """Run a stage's preparation; says what went wrong."""
    command = [python, f"stages/{stage}/data_prep.py", "-c", "tiny", f"run.home={work / 'home'}", *settings]
    ended = commands.run(command, 300, work / f"data-{stage}.log", environment)
    return None if ended.code == 0 else f"{stage} data: exit code {ended.code}: {commands.last_words(ended.output)}"


def write_chats(path: Path, count: int = 4000) -> Path:
    """Write reproducible chats with questions and answers of 30 to 3,000 words."""
    draw = random.Random(0)

    def text(mean: float) -> str:
        return " ".join(draw.choices(WORDS, k=min(3000, max(30, int(draw.lognormvariate(mean, 0.8))))))

    with path.open("w", encoding="utf-8") as file:
        for number in range(count):
            turns = {"user": f"Tell story number {number}, like this: {text(4.5)}", "assistant": text(5.3)}
            messages = [{"role": role, "content": content} for role, content in turns.items()]
            file.write(json.dumps({"messages": messages}) + "\n")
    return path
