"""Checks before Megatron-Bridge starts: whether the model can be split as the layout says, memory and disk.

The splitting rules are Megatron-Core's own, which it would apply only once it runs on the GPUs: TransformerConfig,
MambaMixer and its context parallelism, the linear layers, the MoE layer and HybridModel check them.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from fnmatch import fnmatch
from typing import Any, NamedTuple

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from nemotron_engines.checks import base_packages, disk_bytes, in_billions, size_of
from nemotron_engines.estimate.memory import Layout
from nemotron_engines.megatron_bridge.settings import OLDEST_BRIDGE, TRIED, MegatronBridgeEngine
from nemotron_engines.modeling.architecture import DEFAULTS, fields_of
from nemotron_engines.overrides import foreign_code, section
from nemotron_shared.config.training import PretrainTrain, SupervisedConfig, TrainingConfig
from nemotron_shared.engine.engine import Inputs
from nemotron_shared.engine.needs import Needs
from nemotron_shared.machine.machine import Machine
from nemotron_shared.system.errors import Finding, problem

PYTHON = SpecifierSet("==3.12.*")
CHECKPOINT_MARK = "latest_train_state.pt"
WEIGHTS = ("model.safetensors", "model.safetensors.index.json")
ON_THE_OPTIMIZER = ("optimizer_cpu_offload", "use_precision_aware_optimizer")


def problems(config: SupervisedConfig[MegatronBridgeEngine], inputs: Inputs) -> Iterator[Finding]:
    """Problems with the config or with its starting model."""
    engine, model = config.engine, inputs.get("model")
    if fields := fields_of(config, inputs):
        yield from split_problems(engine, fields, getattr(config.train, "seq_length", None))
    if not isinstance(config.train, PretrainTrain):
        yield from unpadded(engine)
    yield from foreign_code(engine.overrides)
    if engine.keep_checkpoint and engine.peft.scheme is not None:
        what = "engine.keep_checkpoint: with adapters, Megatron's checkpoint does not contain the model's weights"
        yield problem(what, "turn it off: the published model has the adapters merged into its weights")
    if model is None:
        if engine.start_from == "state" and config.run.model is None:
            yield problem("engine.start_from=state needs run.model", "set run.model")
        return
    kept = (model.path / "megatron" / CHECKPOINT_MARK).is_file()
    if engine.start_from == "state" and not kept:
        what = f"engine.start_from=state: {model.reference} has no Megatron checkpoint"
        yield problem(what, "train it with engine.keep_checkpoint=true, or set engine.start_from=weights")
    if engine.start_from == "weights" and not kept and not any((model.path / name).is_file() for name in WEIGHTS):
        what = f"{model.reference} has no safetensors weights to start from"
        yield problem(what, "use another run.model")


def needs(config: SupervisedConfig[MegatronBridgeEngine], inputs: Inputs, machine: Machine) -> Needs:
    """Packages, layout, memory and disk."""
    engine, size = config.engine, size_of(config, inputs)
    pretraining = isinstance(config.train, PretrainTrain)
    tensor, pipeline = engine.tensor_model_parallel_size, engine.pipeline_model_parallel_size
    readers = machine.processes // (tensor * pipeline * engine.context_parallel_size)
    expert = {
        "engine.expert_model_parallel_size": engine.expert_model_parallel_size,
        "engine.expert_tensor_parallel_size": engine.expert_tensor_parallel_size,
        "engine.pipeline_model_parallel_size": pipeline,
    }
    on_gpu = bool(machine.gpus) and engine.device != "cpu"
    # the CPU stand-ins for Megatron's loop work with one pair of versions
    versions = {name: f"=={version}" for name, version in TRIED.items()}
    if on_gpu:
        versions = {"megatron-core": "", "megatron-bridge": f">={'.'.join(map(str, OLDEST_BRIDGE))}"}
    others: list[Finding] = []
    if not pretraining and not on_gpu:
        what = "engine megatron_bridge cannot fine-tune without a GPU: packed rows need Transformer Engine's attention"
        others.append(problem(what, "run it on GPUs, or use engine=transformers"))
    per_process, kept = _bytes_per_process(config, size.total - size.experts, size.experts, machine.processes)
    weight = 4 if engine.mixed_precision is None else 2
    checkpoint = 0 if engine.peft.scheme else (weight + (8 if weight == 4 else 12)) * size.total
    return Needs(
        packages=(*(Requirement(name + range_) for name, range_ in versions.items()), *base_packages()),
        container=engine.container,
        python=PYTHON,
        device=engine.device,
        made_for=engine.world_size if engine.world_size != machine.processes else None,
        shared=[
            {
                "engine.tensor_model_parallel_size": tensor,
                "engine.pipeline_model_parallel_size": pipeline,
                "engine.context_parallel_size": engine.context_parallel_size,
            },
            expert,
        ],
        rows=config.rows_per_step,
        micro=config.micro_rows(readers),
        process_bytes=per_process,
        kept=f"{kept} of {in_billions(size.total)}"
        + (f" over {machine.processes} processes" if machine.processes > 1 else ""),
        **disk_bytes(config, checkpoint, weight * size.total),
        others=tuple(others),
    )


def _bytes_per_process(
    config: SupervisedConfig[MegatronBridgeEngine], dense: int, experts: int, processes: int
) -> tuple[int, str]:
    """Bytes per process and their description: its part of weights and gradients, and its share of the optimizer, which
    is sharded over all processes with the same part."""
    engine = config.engine
    pipeline = engine.pipeline_model_parallel_size
    dense_split = engine.tensor_model_parallel_size * pipeline
    expert_split = engine.expert_model_parallel_size * engine.expert_tensor_parallel_size * pipeline
    part = dense // dense_split + experts // expert_split
    weight = 4 if engine.mixed_precision is None else 2
    if engine.peft.scheme is not None:
        return weight * part, "the weights"
    optimizer = engine.overrides.get("optimizer")
    if isinstance(optimizer, dict) and any(optimizer.get(name) for name in ON_THE_OPTIMIZER):
        return 2 * weight * part, "weights and gradients"
    moments = optimizer_bytes(engine, unknown=2)  # the lower bound
    owned = (dense + experts) // max(processes, 1)
    return 2 * weight * part + moments * owned, "weights, gradients and optimizer"


UNEVEN = (
    "num_layers_in_first_pipeline_stage", "num_layers_in_last_pipeline_stage", "pipeline_model_parallel_layout",
    "account_for_embedding_in_pipeline_split", "account_for_loss_in_pipeline_split", "hybrid_layer_pattern",
)  # fmt: skip
UNEVEN_RECIPES = ("nemotron_3_super_sft_16gpu_h100_bf16_32k_config",)
"""Recipes that give pipeline stages different numbers of layers."""
MOST = 1024


class Rule(NamedTuple):
    """A constraint on a size, `fits(count, size)`; `what` describes the count, `field` is Megatron's name for it."""

    what: str
    count: int
    field: str
    fits: Callable[[int, int], bool] = lambda count, size: count % size == 0


def split_problems(
    engine: MegatronBridgeEngine, fields: Mapping[str, Any], seq_length: int | None = None
) -> Iterator[Finding]:
    """A problem for each size of the layout that does not fit the model's layers.

    Args:
        fields: fields of the architecture, by their Hugging Face names.
        seq_length: tokens of a row; None if the data decides.
    """
    model, fields = section(engine.overrides, "model"), DEFAULTS | dict(fields)
    tensor, experts = engine.tensor_model_parallel_size, "E" in fields["hybrid_override_pattern"]
    if experts and tensor > 1 and not engine.sequence_parallel and "sequence_parallel" not in model:
        what = f"Megatron needs sequence parallelism for experts with engine.tensor_model_parallel_size={tensor}"
        yield problem(what, "set engine.sequence_parallel=true", "engine.sequence_parallel")
    for key, rules in (_rules(engine, fields, model) | _context_rules(engine, fields, seq_length)).items():
        asked = [rule for rule in rules if rule.count and rule.field not in model]
        size = getattr(engine, key)
        broken = [rule for rule in asked if not rule.fits(rule.count, size)]
        if broken:
            valid = [str(one) for one in range(1, MOST) if all(rule.fits(rule.count, one) for rule in asked)]
            counts = ", ".join(f"{rule.count} {rule.what}" for rule in broken)
            what = f"Megatron cannot split the model's {counts} into {size} parts"
            yield problem(what, f"set engine.{key} to one of {', '.join(valid)}", f"engine.{key}")


def unpadded(engine: MegatronBridgeEngine) -> Iterator[Finding]:
    """Report that packed rows do not support context parallelism."""
    if engine.context_parallel_size > 1:
        multiple = 2 * engine.context_parallel_size
        what = f"engine.context_parallel_size > 1 needs every packed sequence padded to a multiple of {multiple}"
        remedy = "set engine.context_parallel_size=1"
        yield problem(f"{what}; data preparation does not pad", remedy, "engine.context_parallel_size")


def _rules(engine: MegatronBridgeEngine, fields: Mapping[str, Any], model: Mapping[str, Any]) -> dict[str, list[Rule]]:
    """Rules, by setting."""
    pattern = fields["hybrid_override_pattern"]
    tensor = [
        Rule("attention heads", fields["num_attention_heads"], "num_attention_heads"),
        Rule("key-value heads", fields["num_key_value_heads"], "num_query_groups", _either_divides),
    ]
    if "M" in pattern:
        tensor.append(Rule("Mamba heads", fields["mamba_num_heads"], "mamba_num_heads"))
        tensor.append(Rule("Mamba groups", fields["n_groups"], "mamba_num_groups"))
    rules = {"tensor_model_parallel_size": tensor}
    if "E" in pattern:
        rules["expert_model_parallel_size"] = [Rule("routed experts", fields["n_routed_experts"], "num_moe_experts")]
    recipe = (engine.recipe or "").rpartition(".")[2]
    if recipe not in UNEVEN_RECIPES and not any(model.get(name) for name in UNEVEN):
        rules["pipeline_model_parallel_size"] = [Rule("layers", len(pattern), "num_layers")]
    return rules


def _context_rules(
    engine: MegatronBridgeEngine, fields: Mapping[str, Any], seq_length: int | None
) -> dict[str, list[Rule]]:
    """Context parallelism cuts a row into two pieces per process, and splits a tensor part's heads in Mamba layers."""
    tensor, rules = engine.tensor_model_parallel_size, []
    if seq_length:
        rules.append(Rule("tokens of a row (in 2 pieces for each part)", seq_length, "seq_length", _in_two_pieces))
    if "M" in fields["hybrid_override_pattern"] and not fields["mamba_num_heads"] % tensor:
        rules.append(Rule("Mamba heads of a tensor part", fields["mamba_num_heads"] // tensor, "mamba_num_heads"))
        groups = fields["n_groups"] // tensor
        rules.append(Rule("Mamba groups of a tensor part", groups, "mamba_num_groups", _either_divides))
    return {"context_parallel_size": rules}


def _in_two_pieces(tokens: int, size: int) -> bool:
    """Whether a row divides; Megatron gives each process an early and a late piece, to balance the work."""
    return size == 1 or tokens % (2 * size) == 0


def _either_divides(count: int, size: int) -> bool:
    """Whether either size divides the other; a key-value head may also be shared by several processes."""
    return count % size == 0 or size % count == 0


PARTS = ("main_params_dtype", "exp_avg_dtype", "exp_avg_sq_dtype")
WIDTHS = {"float32": 4, "bfloat16": 2, "float16": 2, "uint8": 1}
# Bytes of each of the three parts, by the recipe's function; the first match wins. From `cfg.optimizer` in
# megatron/bridge/recipes/nemotronh of Megatron-Bridge 067f987d: only Super's pretraining and SFT for H100 set
# use_precision_aware_optimizer, with float16 weights and bfloat16 moments.
RECIPES = {
    "nemotron_3_super_*gb200*": 4,
    "nemotron_3_super_pretrain_*": 2,
    "nemotron_3_super_sft_*": 2,
    "nemotron_3_super_peft_*": 4,
    "nemotron_3_nano_*": 4,
    "nemotron_3_5_lightning_*": 4,
    "nemotron_3_ultra_*": 4,
}


def optimizer_bytes(engine: MegatronBridgeEngine, *, unknown: int = 4) -> int:
    """Optimizer bytes per trained parameter; `unknown` is the size of each part if the recipe is unknown."""
    if engine.mixed_precision is None:
        return 8  # the weights themselves are float32
    known = known_width(engine.recipe)
    usual = unknown if known is None else known
    asked = section(engine.overrides, "optimizer")
    if asked.get("use_precision_aware_optimizer") is False:
        return 12
    return sum(WIDTHS.get(str(asked.get(part)).removeprefix("torch."), usual) for part in PARTS)


def known_width(recipe: str | None) -> int | None:
    """Bytes of each of the three parts; None for a recipe that is not in the table."""
    if recipe is None:
        return 4
    function = recipe.rpartition(".")[2]
    return next((width for pattern, width in RECIPES.items() if fnmatch(function, pattern)), None)


# How Megatron-Bridge shares a model and its rows out over GPUs, for estimates.


UNKNOWN = "memory: this recipe's optimizer is unknown; assuming the maximum of 12 bytes per parameter"


def layout(config: TrainingConfig, plain: Layout) -> Layout:
    engine: Any = config.engine
    frozen, small = engine.peft.scheme is not None, engine.mixed_precision is not None
    model, precision = section(engine.overrides, "model"), section(engine.overrides, "mixed_precision")
    reduced_in_32_bits = precision.get("grad_reduce_in_fp32", True) or not small
    experts = engine.recipe is not None or "moe" in (model.get("recompute_modules") or [])
    return replace(
        plain,
        tensor=engine.tensor_model_parallel_size,
        pipeline=engine.pipeline_model_parallel_size,
        context=engine.context_parallel_size,
        expert=engine.expert_model_parallel_size * engine.expert_tensor_parallel_size,
        weight=2 if small else 4,
        gradient=0 if frozen else 4 if reduced_in_32_bits else 2,
        optimizer=0 if frozen else optimizer_bytes(engine),
        trained=not frozen,
        recomputed="everything"
        if model.get("recompute_granularity") == "full"
        else "experts"
        if experts
        else "nothing",
        activation=2 if small else 4,
        assumed=() if frozen or known_width(engine.recipe) else (UNKNOWN,),
    )
