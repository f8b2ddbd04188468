"""Fine-tuning by `nemotron sft` and by TRL's SFTTrainer: the same model, chats, rows a step and length of a row.

Each command runs at two lengths. Between them lie steps alone, so their difference gives the speed. The time of the
shorter one besides its steps is the start: from the command to the first step, and from the last one to the saved
model. Our rows are packed before, by `nemotron data prep`, once for many trainings; TRL packs them at each start. Our
first start of a kind rehearses a step; those that are measured remember it.
"""

import argparse
import json
import shutil
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from prep_bench.process_tree import run_measured
from prep_bench.settings import REPOSITORY

from against_bench.models import save_model, save_tokenizer

TRL = Path(__file__).resolve().parent / "programs" / "trl_sft.py"
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
PARAGRAPH = range(200, 1500)
"""Characters of a paragraph that becomes a chat: about 140 tokens, as a problem of GSM8K with its solution."""
FIGURES = {"tokens per CPU second": "{:,.0f}", "start, CPU s": "{:.1f}", "peak memory, MB": "{:,.0f}"}


class Work(NamedTuple):
    """The work of both programs. `steps` are those of the shorter and of the longer command."""

    chats: int = 3000
    rows: int = 16
    length: int = 512
    steps: tuple[int, int] = (2, 8)
    micro_batch: int = 1
    """TRL's, of 1, 2, 4 and 16 the fastest and the smallest in memory; ours is chosen by the training itself."""


REHEARSAL = Work(chats=40, rows=2, steps=(1, 2))
Command = Callable[[Path, str, str, Work, int], list[str]]
TRAININGS = (("llama", "all"), ("llama", "lora"), ("qwen3_moe", "all"), ("nemotron_h", "all"))


def training(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Measure and print the section."""
    work = REHEARSAL if options.rehearse else Work()
    rounds = 1 if options.rehearse else options.rounds
    lines: list[dict[str, Any]] = []
    print("| model | weights | figure | ours | TRL | ours to TRL |\n|---|---|---|--:|--:|--:|", flush=True)
    with tempfile.TemporaryDirectory(prefix="against-") as name:
        folder = Path(name)
        write_chats(folder / "chats.jsonl", work.chats)
        for model, weights in TRAININGS[:1] if options.rehearse else TRAININGS:
            if not (folder / model).is_dir():
                prepare(folder, model, work, tiny=options.rehearse)
            rehearse(folder, model, weights, work)
            found: dict[str, list[dict[str, float]]] = {"ours": [], "trl": []}
            for _ in range(rounds):
                found["ours"].append(measured(ours, folder, model, weights, work))
                found["trl"].append(measured(trls, folder, model, weights, work))
            lines += [{"model": model, "weights": weights, "figure": figure,
                       **{program: [one[figure] for one in found[program]] for program in found}}
                      for figure in FIGURES]  # fmt: skip
            print("\n".join(map(row_of, lines[-len(FIGURES) :])), flush=True)
    return lines


def row_of(line: dict[str, Any]) -> str:
    """A figure of a training: medians, and the median of the ratios within a round."""
    medians = [FIGURES[line["figure"]].format(statistics.median(line[program])) for program in ("ours", "trl")]
    ratio = statistics.median(one / other for one, other in zip(line["ours"], line["trl"], strict=True))
    return f"| {line['model']} | {line['weights']} | {line['figure']} | {' | '.join(medians)} | {ratio:.2f} |"


def measured(command: Command, folder: Path, model: str, weights: str, work: Work) -> dict[str, float]:
    """Figures of a program from its shorter and its longer command."""
    (short, long), tokens = work.steps, work.rows * work.length
    first, second = (
        run_measured(command(folder, model, weights, work, steps), ENVIRONMENT, REPOSITORY) for steps in work.steps
    )
    step = (second.cpu_s - first.cpu_s) / (long - short)
    return dict(zip(FIGURES, (tokens / step, first.cpu_s - short * step, second.largest_mb), strict=True))


def ours(folder: Path, model: str, weights: str, work: Work, steps: int) -> list[str]:
    """Our command, in a home that has the rows and no training."""
    shutil.rmtree(folder / "home", ignore_errors=True)
    shutil.copytree(folder / f"{model}-home", folder / "home")
    return nemotron(
        folder / "home", "sft", "-c", "local", f"run.model={folder / model}", "run.threads=1", "optimizer.lr=1e-5",
        f"train.train_iters={steps}", f"train.global_batch_size={work.rows}", f"train.eval_interval={steps}",
        "train.eval_rows=1", f"checkpoint.save_interval={steps}", "scheduler.lr_warmup_iters=0",
        *(["engine=transformers_lora"] if weights == "lora" else []),
    )  # fmt: skip


def rehearse(folder: Path, model: str, weights: str, work: Work) -> None:
    """The step that our first start of this kind rehearses, and that the others remember."""
    run_measured([*ours(folder, model, weights, work, work.steps[0]), "--dry-run"], ENVIRONMENT, REPOSITORY)
    shutil.copytree(folder / "home", folder / f"{model}-home", dirs_exist_ok=True)


def trls(folder: Path, model: str, weights: str, work: Work, steps: int) -> list[str]:
    """TRL's program, in a folder without a cache."""
    output = folder / "trl"
    shutil.rmtree(output, ignore_errors=True)
    numbers = map(str, (steps, work.rows, work.micro_batch, work.length))
    return [sys.executable, str(TRL), str(folder / model), str(folder / "chats.jsonl"), str(output), *numbers, weights]


def nemotron(home: Path, *words: str) -> list[str]:
    """A command of ours, with this home."""
    return [sys.executable, "-m", "nemotron_app.main", "super3", *words, f"run.home={home}"]


def prepare(folder: Path, model: str, work: Work, *, tiny: bool) -> None:
    """The model with a tokenizer of the chats, and a home with their packed rows."""
    save_model(model, folder / model, tiny=tiny)
    save_tokenizer(folder / model, texts(), tiny=tiny)
    settings = (f"data_prep.source={folder / 'chats.jsonl'}", f"data_prep.tokenizer.model={folder / model}")
    words = ("data", "prep", "sft", "-c", "local", *settings, f"data_prep.pack_size={work.length}")
    run_measured(nemotron(folder / f"{model}-home", *words), ENVIRONMENT, REPOSITORY)


def texts() -> Iterator[str]:
    """Paragraphs of this project's documents."""
    for file in sorted(REPOSITORY.glob("docs/**/*.md")):
        yield from (part.strip() for part in file.read_text(encoding="utf-8").split("\n\n"))


def write_chats(file: Path, count: int) -> None:
    """Chats that ask for the rest of a paragraph, each with its own number."""
    parts = [text for text in texts() if len(text) in PARAGRAPH]
    with file.open("w", encoding="utf-8") as lines:
        for number in range(count):
            text = parts[number % len(parts)]
            cut = len(text) // 4
            turns = (("user", f"{number}. {text[:cut]}"), ("assistant", text[cut:]))
            messages = [{"role": role, "content": content} for role, content in turns]
            lines.write(json.dumps({"messages": messages}) + "\n")
