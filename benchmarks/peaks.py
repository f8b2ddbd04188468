"""Compare the peak memory of small trainings with what their dry runs plan, and print a table.

    uv run python benchmarks/peaks.py            # every case: about ten minutes on one core
    uv run python benchmarks/peaks.py --only GRPO,llama
    uv run python benchmarks/peaks.py --write    # and put the table into docs/plan.md

Each case is a training of a few steps in a process of its own, on one CPU thread. Measured is the largest resident
memory of a process, planned the estimate of the same command with `--dry-run`. Weights are random, rows and prompts
are paragraphs of this project's documents.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from against_bench.models import save_model, save_tokenizer
from against_bench.training import ENVIRONMENT, nemotron, texts
from prep_bench.process_tree import run_measured
from prep_bench.settings import REPOSITORY

PAGE = REPOSITORY / "docs" / "plan.md"
BEGIN, END = "<!-- peaks -->\n", "<!-- end of peaks -->"


class Case(NamedTuple):
    """A training: of which model, by which config, and with what settings."""

    model: str
    training: str
    config: str
    settings: tuple[str, ...] = ()


BATCH = "train.global_batch_size=8"
GROUPS = ("grpo.num_prompts_per_step=4", "grpo.num_generations_per_prompt=4", "grpo.max_new_tokens=64",
          "grpo.overlong_filtering=false", "train.micro_batch_size=null")  # fmt: skip
"""Random weights end few answers, and those that are cut would teach nothing."""
LORA = "engine=transformers_lora"
CASES = (
    Case("llama", "SFT, rows of a pass chosen", "sft/local", (BATCH, "train.micro_batch_size=null")),
    Case("llama", "SFT, 8 rows", "sft/local", (BATCH, "train.micro_batch_size=8")),
    Case("llama", "SFT with LoRA, 4 rows", "sft/local", (BATCH, "train.micro_batch_size=4", LORA)),
    Case("qwen3_moe", "SFT, 4 rows", "sft/local", (BATCH, "train.micro_batch_size=4")),
    Case("nemotron_h", "SFT, 2 rows", "sft/local", (BATCH, "train.micro_batch_size=2")),
    Case("nemotron_h", "SFT with LoRA, 4 rows", "sft/local", (BATCH, "train.micro_batch_size=4", LORA)),
    Case("llama", "pretraining, 4 rows", "pretrain/local", (BATCH, "train.micro_batch_size=4", "train.seq_length=256")),
    Case("nemotron_h", "pretraining, 4 rows", "pretrain/local",
         (BATCH, "train.micro_batch_size=4", "train.seq_length=256")),
    Case("llama", "DPO, 4 pairs", "rl/dpo", ("dpo.global_batch_size=8", "train.micro_batch_size=4")),
    Case("qwen3_moe", "reward model, 8 pairs", "rl/reward",
         ("reward_modeling.global_batch_size=8", "train.micro_batch_size=8")),
    Case("llama", "GRPO, 4 groups of 4", "rl/local", GROUPS),
    Case("nemotron_h", "GRPO, 4 groups of 4", "rl/local", GROUPS),
    Case("llama", "distillation, 4 groups of 4", "rl/local", (*GROUPS, "distillation={kl_type: reverse}")),
)  # fmt: skip
ALWAYS = ("run.threads=1", "run.missing_data=prepare", "train.train_iters=2", "train.eval_rows=2",
          "scheduler.lr_warmup_iters=0", "optimizer.lr=1e-5", "optimizer.min_lr=0", "data_prep.max_lost=1.0",
          )  # fmt: skip
LENGTHS = range(700, 1000)
"""Characters of the paragraphs: of about one length, so that a run of two steps meets the longest rows."""
REWARD = """def different(completion: str) -> float:
    return sum(map(ord, completion)) % 7
"""
"""Random weights are right nowhere, and equal rewards teach nothing."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", metavar="WORD,WORD", default="", help="cases with all of these in their row")
    parser.add_argument("--write", action="store_true", help="put the table into docs/plan.md")
    parser.add_argument("--rehearse", action="store_true", help="the first case with a tiny model, for the tests")
    asked = parser.parse_args()
    cases = CASES[:1] if asked.rehearse else CASES
    words = asked.only.split(",")
    chosen = [one for one in cases if all(word in f"{one.model} {one.training} {one.config}" for word in words)]
    lines = ["| model | training | planned | measured | planned / measured |", "|---|---|--:|--:|--:|"]
    print("\n".join(lines), flush=True)
    with tempfile.TemporaryDirectory(prefix="peaks-") as name:
        for line in rows(Path(name), chosen, tiny=asked.rehearse):
            print(line, flush=True)
            lines.append(line)
    if asked.write:
        before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
        PAGE.write_text(before + BEGIN + "\n".join(lines) + "\n" + END + rest.partition(END)[2], encoding="utf-8")
    return 0


def rows(folder: Path, cases: list[Case], *, tiny: bool) -> Iterator[str]:
    """Measure each case."""
    write_data(folder)
    for number, case in enumerate(cases):
        model = folder / case.model
        if not model.is_dir():
            save_model(case.model, model, tiny=tiny)
            save_tokenizer(model, texts(), tiny=tiny)
        command = words_of(folder, case, folder / f"home-{number}")
        measured = run_measured(command, ENVIRONMENT, REPOSITORY).largest_mb  # prepares the data, too
        planned = plan_of([*command, "--force"])
        figures = f"{planned:,.0f} MB | {measured:,.0f} MB | {planned / measured:.2f}"
        yield f"| {case.model} | {case.training} | {figures} |"


def words_of(folder: Path, case: Case, home: Path) -> list[str]:
    """The command of a case."""
    stage, config = case.config.split("/")
    data = {"sft": "chats", "pretrain": "texts", "rl": "pairs" if config in ("dpo", "reward") else "questions"}[stage]
    more = [f"data_prep.source={folder / data}.jsonl"]
    if stage == "sft":
        more += ["data_prep.pack_size=512"]
    if stage != "rl":
        more += [f"data_prep.tokenizer.model={folder / case.model}"]
    if case.training.startswith("distillation"):
        more += [f"run.teacher={folder / case.model}"]
    elif config == "local" and stage == "rl":
        more += [f"rewards=[{{path: {folder / 'rewards.py'}:different}}]", "--trust-code"]
    return nemotron(home, stage, "-c", config, f"run.model={folder / case.model}", *ALWAYS, *more, *case.settings)


def plan_of(command: list[str]) -> float:
    """The peak that a dry run plans, in MB."""
    done = subprocess.run([*command, "--dry-run", "--json"], cwd=REPOSITORY, capture_output=True, text=True, check=True)
    shown = json.loads(done.stdout)
    assert shown["estimate"], (shown["problems"], shown["notes"])
    return sum(shown["estimate"]["memory"].values()) / 1e6


def write_data(folder: Path) -> None:
    """Chats, texts, questions and pairs of answers, of 300 paragraphs."""
    (folder / "rewards.py").write_text(REWARD, encoding="utf-8")
    parts = [text for text in texts() if len(text) in LENGTHS]
    found: dict[str, list[object]] = {"chats": [], "texts": [], "questions": [], "pairs": []}
    for number in range(300):
        text = parts[number % len(parts)]
        asked, told = f"{number}. {text[: len(text) // 4]}", text[len(text) // 4 :]
        turns = [{"role": "user", "content": asked}, {"role": "assistant", "content": told}]
        found["chats"].append({"messages": turns})
        found["texts"].append({"text": f"{asked}{told}"})
        found["questions"].append({"question": asked, "expected_answer": told[:20]})
        found["pairs"].append({"prompt": asked, "chosen": told, "rejected": parts[(number + 7) % len(parts)]})
    for name, lines in found.items():
        (folder / f"{name}.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
