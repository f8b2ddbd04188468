"""Estimate a stage's training: model, layout, memory and time."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeVar

from nemotron_data.sources.datasets import SYNTHETIC
from nemotron_data.synthetic.rows import pairs
from nemotron_engines.checks import VOCABULARY, is_unknown, size_of, vocabulary_of
from nemotron_engines.estimate.counted import counted
from nemotron_engines.estimate.lengths import READ, Row, pair_tokens, prompt_tokens, rows_of
from nemotron_engines.estimate.memory import (
    ALL_LOGITS,
    CONTEXT_BYTES,
    PROCESS_BYTES,
    Layout,
    layout_of,
    memory_parts,
)
from nemotron_engines.estimate.micro_batch import fitted
from nemotron_engines.estimate.speed import (
    BACKWARD,
    FROZEN_BACKWARD,
    LEARNT,
    Rollout,
    Work,
    active_parameters,
    core_rl_seconds,
    core_seconds,
    step_seconds,
    work_of,
)
from nemotron_engines.modeling.architecture import NEMOTRON_H, Parameters, fields_of, parameters_of
from nemotron_shared.artifacts import Artifact
from nemotron_shared.config.schema import LocalEngine, TransformersEngine
from nemotron_shared.config.training import GRPOConfig, TrainingConfig
from nemotron_shared.engine.engine import Inputs
from nemotron_shared.engine.needs import MARGIN, Estimate, Needs
from nemotron_shared.engine.spec import Task
from nemotron_shared.machine.machine import CORE, DEVICES, Device, Machine, device_named
from nemotron_shared.system import distributed
from nemotron_shared.system.disk import size
from nemotron_shared.system.errors import UserError, lacking

ConfigT = TypeVar("ConfigT", bound=TrainingConfig)

RECIPES_GPU = "H100"
"""The GPU that the recipes are made for."""
PUBLISHED_GRPO, OF_ACTIVE = 1102, 3.3e9
"""Tokens per second and GPU of a whole step of GRPO with Qwen3-30B-A3B on 32 H100 (NeMo-RL 0.6), and its active
parameters."""
LAYERS = {"*": "attention", "M": "Mamba", "-": "MLPs", "E": "experts"}
"""Kinds of layers by their letters in `hybrid_override_pattern`."""
NO_END = 100_000
"""More steps than any GRPO recipe makes: such a number means to train until the prompts run out."""


@dataclass(frozen=True)
class Sized:
    """A training's model, rows and peak.

    Attributes:
        fields, parameters: of the model; `outputs` how many numbers its head has, `vocab` how many tokens are known.
        devices, device, whose: how many, their data sheet if known, and their name.
        read: whether data was read for the length of the rows.
        memory: peak bytes on one device, by part; `there` its capacity, None if unknown.
        budget: the part of it that the training may take.
        whole: rows of a pass if memory and speed played no part.
    """

    fields: dict[str, Any]
    parameters: Parameters
    vocab: int
    outputs: int
    devices: int
    device: Device | None
    whose: str
    read: bool
    layout: Layout
    work: Work
    memory: dict[str, float]
    there: float | None
    budget: float
    whole: int

    @property
    def peak(self) -> float:
        """Bytes of a step."""
        return sum(self.memory.values())


def sized(config: TrainingConfig, inputs: Inputs, machine: Machine) -> Sized:
    """The peak of a training's step, and with it the rows of a pass that the config leaves open.

    Raises:
        UserError: the model cannot be counted.
    """
    if is_unknown(config, inputs, machine):
        why = "cannot be used" if machine.sees_files else "is not seen from here"
        raise UserError(f"the model that run.model names {why}")
    if getattr(config.engine, "device", "auto") == "cpu":
        machine = replace(machine, gpus=())
    fields, parameters = _described(config, inputs)
    vocab = vocabulary_of(config, fields, inputs.get("data"))
    parameters = parameters if parameters.total else parameters_of(fields, vocab)
    devices, device, whose = _devices(config, machine)
    tokens, longest, read = _row_tokens(config, inputs, vocab)
    layout = replace(layout_of(config, devices, tokens), longest=longest)
    if not isinstance(config, GRPOConfig):
        layout = replace(layout, all_logits=ALL_LOGITS.get(fields.get("after_head", ""), 0))
    outputs = 1 if isinstance(config, GRPOConfig) and config.reward_modeling is not None else vocab
    work = work_of(fields, outputs, tokens, predictions=_predictions(config, fields), frozen=not layout.trained)
    there, whole, on_gpu = _memory_there(device, machine, devices), layout.micro_rows, whose != CORE
    budget = _budget(config, there, 1 if on_gpu else devices)

    def parts(one: Layout) -> dict[str, float]:
        return memory_parts(fields, outputs, parameters, one, on_gpu=on_gpu)

    if is_open(config):
        layout = fitted(layout, work.operations, lambda one: sum(parts(one).values()), budget, on_gpu=on_gpu)
    return Sized(
        fields, parameters, vocab, outputs, devices, device, whose, read, layout, work, parts(layout), there, budget,
        whole,
    )  # fmt: skip


def _budget(config: TrainingConfig, there: float | None, share: int) -> float:
    """Bytes that one process may take, where `share` of them share what `run.memory` allows; without it, all but the
    margin that a plan leaves."""
    if config.run.memory is None:
        return math.inf if there is None else (1 - MARGIN) * there
    return config.run.budget(share * (there or math.inf)) / share


def is_open(config: TrainingConfig) -> bool:
    """Whether memory and speed decide how many rows a pass takes; with `bnpo`, the loss depends on it."""
    if config.train.micro_batch_size is not None or not isinstance(config.engine, LocalEngine):
        return False
    return not (isinstance(config, GRPOConfig) and config.grpo.loss_type == "bnpo")


def estimate_training(config: TrainingConfig, inputs: Inputs, machine: Machine, needs: Needs) -> Estimate:
    """Memory, disk and time of a training.

    Raises:
        UserError: the model cannot be counted.
    """
    found = sized(config, inputs, machine)
    fields, parameters, layout = found.fields, found.parameters, found.layout
    checkpoint = needs.checkpoint_bytes or (0 if not layout.trained else 14 * parameters.total)
    result = needs.result_bytes or 2 * parameters.total
    steps = min(config.train.train_iters, getattr(config.engine, "stop_at", None) or config.train.train_iters)
    active = active_parameters(fields, parameters.total, parameters.experts)
    kind = fields.get("model_type", NEMOTRON_H)
    return Estimate(
        architecture=_whose(config, inputs),
        parameters=parameters.total,
        active=active,
        device=found.whose,
        devices=found.devices,
        layout=f"{layout}, {PAIRS if found.read else UNREAD_PAIRS}" if _is_on_pairs(config) else str(layout),
        memory=found.memory,
        memory_there=found.there,
        checkpoint=checkpoint,
        result=result,
        disk=needs.disk_bytes or 2 * checkpoint + result,
        tokens_per_step=config.rows_per_step * layout.row_tokens,
        steps=steps,
        steps_are_a_limit=isinstance(config, GRPOConfig) and steps >= NO_END,
        step_seconds=_seconds(config, found.work, found.device, layout, active, found.whose, kind),
        assumptions=tuple(_assumptions(config, layout, found.device, found.whose, found.vocab, fields, found.read)),
    )


ROUNDED = 10**8
"""Amounts of memory that are asked for are multiples of this many bytes, as many as messages tell."""


def within_budget(needs: Needs, config: TrainingConfig, inputs: Inputs, machine: Machine) -> Needs:
    """The needs of an engine, with a finding where a step would take more memory than `run.memory` allows.

    Without `run.memory`, a training is refused only where it certainly does not fit (`nemotron_shared.engine.needs`).
    """
    if config.run.memory is None:
        return needs
    try:
        found = sized(config, inputs, machine)
    except UserError:
        return needs  # a dry run says why nothing can be counted
    if found.peak <= found.budget:
        return needs
    rows, share = found.layout.micro_rows, found.devices if found.whose == CORE else 1
    enough = math.ceil(share * found.peak / ROUNDED) * ROUNDED
    what = f"run.memory={config.run.memory}: a step takes about {size(enough)} with {_rows(rows)} a pass"
    what += f" in each of {share} processes" if share > 1 else ""
    if rows > 1:
        remedy = "set train.micro_batch_size=null, which takes as many rows as fit, or raise run.memory"
    else:
        remedy = f"set run.memory={size(enough).replace(' ', '')} or more, or shorten the rows"
        remedy += ", or train adapters (engine.peft)" if found.layout.trained else ""
    return replace(needs, others=(*needs.others, lacking(what, remedy)))


def with_micro_batch(task: Task[ConfigT]) -> Task[ConfigT]:
    """A training with the rows of a pass that its config leaves open; says how many where they are not all."""
    config = task.config
    if not is_open(config):
        return task

    def choose() -> tuple[int, str]:
        machine = Machine.here(task.store.home, distributed.world_size())
        try:
            found = sized(config, task.inputs, machine)
        except UserError as error:
            return config.micro_rows(machine.processes), f"all rows in one pass, because {error.message}"
        return found.layout.micro_rows, told(found)

    rows, line = distributed.on_rank_zero(choose)
    if line:
        task.run.say(line)
    train = config.train.model_copy(update={"micro_batch_size": rows})
    return replace(task, config=config.model_copy(update={"train": train}))


def told(found: Sized) -> str:
    """How many rows a pass takes, and why; empty where it is all of them."""
    rows = found.layout.micro_rows
    if rows == found.whole:
        return ""
    smallest = f"a step then takes about {size(found.peak)}"
    why = "no more fit" if found.whose != CORE else "more would not be faster, or not fit"
    return f"{rows} of {found.whole} rows a pass (train.micro_batch_size=null): {smallest}; {why}"


def _rows(count: int) -> str:
    return f"{count} row{'s' if count > 1 else ''}"


def _described(config: TrainingConfig, inputs: Inputs) -> tuple[dict[str, Any], Parameters]:
    """Fields of an architecture, and the parameters of the model that has it, if there is one: by its pattern of
    layers, or else by its tensors."""
    model = inputs.get("model")
    if (fields := fields_of(config, inputs)) is not None:
        return fields, size_of(config, inputs)
    if model is None:
        what = f"model.architecture: {config.model.architecture} has no pattern of layers, by which it could be counted"
        raise UserError(what, "name a model with run.model=..., whose tensors are counted")
    return counted(model.path)


def _whose(config: TrainingConfig, inputs: Inputs) -> str:
    """Which architecture is used, and why."""
    model = inputs.get("model")
    if model is not None and (model.path / "config.json").is_file():
        return f"that of {model.reference}, which run.model names"
    return f"{config.model.architecture}, which model.architecture names"  # no model is read


def _devices(config: TrainingConfig, machine: Machine) -> tuple[int, Device | None, str]:
    """Number of devices, their data sheet if known, and their name."""
    engine: Any = config.engine
    size = getattr(engine, "num_nodes", 0) * getattr(engine, "gpus_per_node", 0)
    size = size or getattr(engine, "world_size", None)
    if machine.gpus:
        name = machine.gpus[0].name
        several = len(machine.gpus) * machine.nodes if hasattr(engine, "num_nodes") else machine.processes
        return several, device_named(name), name
    if size:
        return size, DEVICES[RECIPES_GPU], RECIPES_GPU
    return machine.processes, None, CORE


def _memory_there(device: Device | None, machine: Machine, devices: int) -> float | None:
    if machine.gpus:
        told = min(gpu.memory for gpu in machine.gpus)
        return told if told < float("inf") else device.memory if device else None
    if device is not None:
        return device.memory
    return machine.memory / devices if machine.memory < float("inf") else None


ANSWER_TOKENS = 1024
"""Of an answer with its prompt, where no data says how long those of pairs are."""
PAIRS = "each a pair"
UNREAD_PAIRS = f"{PAIRS}, of two answers that are taken as {ANSWER_TOKENS:,} tokens with their prompts"


def _is_on_pairs(config: TrainingConfig) -> bool:
    return isinstance(config, GRPOConfig) and config.on_pairs is not None


class RowTokens(NamedTuple):
    """Tokens of a full row, of a pair, or of a prompt with its completion.

    Attributes:
        mean, longest: of the rows; `longest` is 0 if all are alike.
        read: whether they were found in the rows.
    """

    mean: int
    longest: int = 0
    read: bool = False


def _row_tokens(config: TrainingConfig, inputs: Inputs, vocab: int) -> RowTokens:
    engine, data = config.engine, inputs.get("data")
    whole = getattr(engine, "max_total_sequence_length", None)
    if isinstance(config, GRPOConfig):
        return RowTokens(whole // 2) if whole and config.on_pairs is None else _rl_tokens(config, data, vocab)
    chats: Any = getattr(engine, "chats", None) if getattr(engine, "data", "packed") == "chat" else None
    if whole or chats is not None:
        return RowTokens(whole or chats.seq_length)
    section: Any = getattr(config, "data_prep", None)
    packed = None if data is None else data.manifest.metadata.get("pack_size")
    return RowTokens(getattr(config.train, "seq_length", None) or packed or getattr(section, "pack_size", None) or 4096)


def _rl_tokens(config: GRPOConfig, data: Artifact | None, vocab: int) -> RowTokens:
    """By the text of the prepared rows, or of made-up ones that will be prepared."""
    rows = rows_of(data.path) if data is not None else _made_up(config)
    if config.on_pairs is not None:
        pair = pair_tokens(rows, vocab)
        return RowTokens(2 * ANSWER_TOKENS) if pair is None else RowTokens(round(pair.mean), round(pair.longest), True)
    prompt, drawn = prompt_tokens(rows, vocab), _drawn(config)
    if prompt is None:
        return RowTokens(2 * config.grpo.max_new_tokens)
    return RowTokens(round(prompt.mean) + drawn, round(prompt.longest) + drawn, True)


def _made_up(config: GRPOConfig) -> list[Row]:
    """Pairs as the data preparation will make them up, if it does."""
    section: Any = getattr(config, "data_prep", None)
    makes_up = config.on_pairs is not None and getattr(section, "source", None) == SYNTHETIC
    return list(pairs(section.seed, READ)) if makes_up else []


TURNS = 2
"""Of an episode: a call and an answer."""


def _drawn(config: GRPOConfig) -> int:
    """Tokens that are drawn for a completion: as many as may be, and of an episode those of two turns."""
    environments = getattr(config.engine, "environments", None)
    most = config.grpo.max_new_tokens
    return most if environments is None else min(TURNS * most, environments.max_episode_tokens)


def _predictions(config: TrainingConfig, fields: dict[str, Any]) -> int:
    """Passes of the multi-token prediction block."""
    if isinstance(config.engine, TransformersEngine):
        return config.engine.mtp_num_layers
    overrides = getattr(config.engine, "overrides", {})
    model = overrides.get("model") if isinstance(overrides, dict) else None
    told = model.get("mtp_num_layers") if isinstance(model, dict) else None
    return told or fields.get("num_nextn_predict_layers") or 0


def _seconds(
    config: TrainingConfig, work: Work, device: Device | None, layout: Layout, active: int, whose: str, kind: str
) -> dict[str, float]:
    tokens = config.rows_per_step * layout.row_tokens
    if device is None and whose != CORE:
        return {}
    if device is None and isinstance(config, GRPOConfig):
        passes = BACKWARD if layout.trained else FROZEN_BACKWARD
        return core_rl_seconds(work, _rollout(config, layout, kind), passes_of_work=passes)
    if device is None:
        seconds = core_seconds(work, layout.devices, tokens)
    else:
        seconds = step_seconds(work, device, layout, tokens)
    if not isinstance(config, GRPOConfig) or config.on_pairs is not None:
        return seconds
    assert device is not None
    training = sum(seconds.values())
    whole = (
        tokens / layout.devices / (PUBLISHED_GRPO * OF_ACTIVE / active * device.bandwidth / DEVICES["H100"].bandwidth)
    )
    return {"training": training, "generation": max(0.0, whole - training)}


def _rollout(config: GRPOConfig, layout: Layout, kind: str) -> Rollout:
    """What a process does in a step: it draws, compares with another model, and learns."""
    engine: Any = config.engine
    on_pairs, backward = config.on_pairs is not None, BACKWARD - 1 if layout.trained else FROZEN_BACKWARD - 1
    compares = config.dpo is not None or config.distillation is not None or config.grpo.reference_policy_kl_penalty > 0
    learns_all = on_pairs or config.distillation is not None
    return Rollout(
        rows=-(-config.rows_per_step // layout.devices),
        row_tokens=layout.row_tokens,
        drawn=0 if on_pairs else _drawn(config),
        exact=kind == NEMOTRON_H and getattr(engine, "wants_exact", False) and config.run.threads == 1,
        forward=1 + compares,
        backward=backward * (1.0 if learns_all else LEARNT),
        passes=layout.passes,
    )


def _how_many_steps(config: GRPOConfig) -> str:
    if config.train.train_iters < NO_END:
        return "as many steps as the config says, but the prompts may run out earlier"
    each = config.grpo.num_prompts_per_step
    return (
        f"steps: train.train_iters={config.train.train_iters:,} is an upper limit; the prompts run out earlier: a step "
        f"takes {each:,} of them; train.train_iters=N plans N steps"
    )


def _assumed_rows(config: GRPOConfig, layout: Layout, device: Device | None, read: bool) -> Iterator[str]:
    """How long rows of reinforcement learning are taken to be, and how completions are drawn."""
    seen = f"by the text of at most {READ} rows" if read else "no data was read"
    if config.on_pairs is not None:
        yield f"pairs: {layout.row_tokens:,} tokens for two answers with their prompts ({seen}); longer ones take more"
        return
    if read:
        yield f"completions as long as allowed, with prompts of {layout.row_tokens - _drawn(config):,} tokens ({seen})"
    else:
        yield "completions with their prompts: half of the longest sequence, or twice max_new_tokens (no data was read)"
    yield _how_many_steps(config)
    if device is not None:
        yield "generation: scaled from one published run of GRPO by active parameters; not checked by a measurement"
    else:
        yield "completions that end earlier take less time, about in proportion; half of them are learnt from"


def _assumptions(
    config: TrainingConfig,
    layout: Layout,
    device: Device | None,
    whose: str,
    vocab: int,
    fields: Mapping[str, Any],
    read: bool,
) -> list[str]:
    """One sentence each."""
    said = []
    if (kind := fields.get("model_type", NEMOTRON_H)) != NEMOTRON_H:
        there = [name for letter, name in LAYERS.items() if letter in fields["hybrid_override_pattern"]]
        said.append(f"{kind}: counted from its tensors, as equal layers of {', '.join(there)}")
    if device is not None:
        said.append("time: three coefficients fitted to the runs that NVIDIA publishes for these models (docs/plan.md)")
        said.append("those runs balance the experts by force and read made-up data: expect real ones to be slower")
        said.append("start, validation, checkpoints and restarts are not included")
    elif whose == CORE:
        said.append(
            "time: measured on one core of an AMD EPYC at 2.4 GHz; other machines take a third to three times that"
        )
    else:
        said.append(f"unknown GPU '{whose}'; known: {', '.join(DEVICES)}")
    if isinstance(config, GRPOConfig):
        said += _assumed_rows(config, layout, device, read)
    else:
        said.append("rows are full")
    if getattr(config.engine, "recipe", None):
        said.append("memory: the recipe computes its experts again in the backward pass, as those for H100 do")
    said += layout.assumed
    if config.engine.name == "nemo_rl":
        said.append("memory: for training only; generation is not included")
    if device is not None or whose != CORE:
        said.append(f"memory: {size(CONTEXT_BYTES)} of each GPU for CUDA, its libraries and communication")
    else:
        said.append(f"memory: {size(PROCESS_BYTES)} of each process for Python and its libraries, as measured on Linux")
    if whose == CORE:
        said.append(
            "memory: activations as transformers' modules keep them, and a fifth as much again for gaps between them"
        )
    else:
        said.append(
            "memory: activations are an estimate that was not checked against any measurement; weights, gradients and "
            "optimizer are counted"
        )
    if vocab == VOCABULARY:
        said.append(f"a vocabulary of {VOCABULARY:,}")
    return said
