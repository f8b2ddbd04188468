"""Check that there are enough prompts for a step."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from nemotron_data.formats.json_lines import read_lines
from nemotron_data.prep.sampling import rows_ahead
from nemotron_engines.checks import training_problems
from nemotron_shared.engine.engine import Inputs
from nemotron_shared.system.errors import Finding, UserError, problem
from stages.rl import data_prep
from stages.rl.schema import RLConfig


def rl_problems(config: RLConfig, inputs: Inputs, recipe: str | None) -> Iterator[Finding]:
    """Problems with model and data that do not depend on the machine."""
    yield from training_problems(config, inputs, recipe)
    data = inputs.get("data")
    if data is not None and not data.is_external:
        holds_pairs = data.manifest.metadata.get("rows") == data_prep.PAIRS.name
        if holds_pairs != (config.on_pairs is not None):
            has, wants = ("pairs of answers", "GRPO asks questions")
            if not holds_pairs:
                who = "DPO" if config.dpo is not None else "a reward model"
                has, wants = ("questions", f"{who} learns from pairs of answers")
            remedy = "name other data: run.data=NAME:vN, or choose the other method by the config"
            yield problem(f"{data.reference} holds {has}, and {wants}", remedy, "run.data")
            return
    if config.on_pairs is not None:
        return  # a step may ask a pair twice
    asked = config.grpo.num_prompts_per_step
    try:
        there = prompts_at_most(config, inputs)
    except UserError:
        return  # data preparation reports unreadable rows
    if there is None or there >= asked:
        return
    fitting = next((prompts for prompts in range(there, 0, -1) if _is_divisible(config, prompts)), 0)
    remedy = "add questions" + (f", or set grpo.num_prompts_per_step={fitting}" if fitting else "")
    yield problem(f"{there} training prompts are too few: a step takes {asked}", remedy, "grpo.num_prompts_per_step")


def _is_divisible(config: RLConfig, prompts: int) -> bool:
    """Whether a step with so many prompts divides into whole updates, and those into whole micro batches."""
    grpo = config.grpo.model_copy(update={"num_prompts_per_step": prompts})
    other, readers = config.model_copy(update={"grpo": grpo}), config.run.nproc_per_node
    whole = other.rows_per_step % grpo.updates_per_step == 0
    return whole and other.rows_per_update % (other.micro_rows(readers) * readers) == 0


def prompts_at_most(config: RLConfig, inputs: Inputs) -> int | None:
    """Number of training prompts, counted only up to the needed number; None if it is not known yet."""
    asked, engine, data = config.grpo.num_prompts_per_step, config.engine, inputs.get("data")
    if data is not None:
        rows: Any = data.manifest.metadata.get("splits", {}).get("train", {}).get("rows")
        return rows
    if file := getattr(engine, "train_rows", None):
        path = Path(file).expanduser()
        return sum(1 for _, _ in zip(range(asked), read_lines(path), strict=False)) if path.is_file() else None
    if config.run.data is None or config.run.missing_data != "prepare":
        return None
    settings, held_out = config.data_prep, config.data_prep.holdout.rows or 0
    if settings.source is None:
        return None
    ahead = rows_ahead(data_prep.ROWS.parts(settings), settings.synthetic_problems, asked + held_out)
    return None if ahead is None else max(0, ahead - held_out)
