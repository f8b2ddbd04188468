"""Adapters next to a model's linear layers, a table of what they reach, and a check that each of them is trained.

lora: rank 16, alpha 32
kind              layers    trained   of its weights
attention         4 of 4      7,168           58.33%
mamba_in          3 of 3     18,816           29.88%
lm_head           0 of 1          0            0.00%
trained: 71,680 of 410,312 parameters (17.47%)
"""

from collections import defaultdict
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from itertools import takewhile
from typing import Any

from peft import LoraConfig, PeftModel, get_peft_model
from peft.tuners.lora import LoraModel
from peft.utils import transformers_weight_conversion as weight_conversion
from torch import nn
from transformers import PreTrainedModel, TrainerCallback, TrainerControl, TrainerState, TrainingArguments, set_seed
from transformers.pytorch_utils import Conv1D

from nemotron_engines.kernels.mamba_install import never_fuse
from nemotron_engines.lora.kinds import BLOCK_KINDS, ONLY_NAMED, PATTERNS, chosen, kind_of, tied_fault
from nemotron_engines.modeling.roles import CONVOLUTIONS, decayed
from nemotron_shared.config.schema import LoraSection
from nemotron_shared.system import distributed
from nemotron_shared.system.errors import UserError


@dataclass
class Coverage:
    """Coverage of one kind of layer: adapted layers, all layers, trained parameters, and the layers' own parameters."""

    adapted: int = 0
    layers: int = 0
    trained: int = 0
    weights: int = 0


def adapted(model: PreTrainedModel, section: LoraSection, seed: int) -> PeftModel:
    """The model with adapters, the only trained weights; the same seed gives the same ones on every process."""
    config = lora_config(model, section)
    targets = (*(config.target_modules or ()), *(config.target_parameters or ()))
    wanted = {name.removesuffix(".weight") for name in targets}
    set_seed(seed)
    with mamba_out_allowed(), names_as_they_are():
        made = get_peft_model(model, config)
    assert isinstance(made, PeftModel)
    found = {layer_of(made, name) for name, _ in made.named_parameters() if "lora_" in name}
    if found != wanted:
        what = f"engine.peft: PEFT {version('peft')} does not adapt what was chosen, such as {min(found ^ wanted)}"
        raise UserError(what, "name other layers in engine.peft.layers")
    return made


def lora_config(model: PreTrainedModel, section: LoraSection) -> LoraConfig:
    """PEFT's config for the layers that a section chooses.

    Raises:
        UserError: a kind or pattern that matches nothing, a head that is also the embeddings, or dropout where PEFT
            has none.
    """
    layers = adaptable(model)
    wanted = chosen(layers, section)
    if section.layers is None and not section.target_modules:
        left_out = {*only_merged(model)}
        wanted = [name for name in wanted if name not in left_out]
    if fault := tied_fault(wanted, tied(model)):
        raise fault
    tensors = [name for name in wanted if not isinstance(layers[name], nn.Module)]
    if tensors and section.dropout:
        named = sorted({kind_of(name) for name in tensors})
        raise UserError(
            f"engine.peft.dropout={section.dropout}: adapters of the kind {', '.join(named)} have no dropout",
            "set engine.peft.dropout=0, or name the other kinds in engine.peft.layers",
        )
    if any(kind_of(name) == "mamba_out" for name in wanted):
        never_fuse()
    return LoraConfig(
        r=section.dim,
        lora_alpha=section.alpha,
        lora_dropout=section.dropout,
        # even an empty list: without one, PEFT adapts only the attention
        target_modules=[name for name in wanted if isinstance(layers[name], nn.Module)],
        target_parameters=[f"{name}.weight" if kind_of(name) == "router" else name for name in tensors],
        task_type="CAUSAL_LM",
    )


def adaptable(model: nn.Module) -> dict[str, nn.Module | nn.Parameter]:
    """Every layer that PEFT could adapt: linear modules, embeddings, and bare matrices of a module."""
    found: dict[str, nn.Module | nn.Parameter] = {}
    for name, module in model.named_modules():
        if isinstance(module, (nn.Linear, nn.Embedding, Conv1D)):
            found[name] = module
        elif kind_of(name) == "router" and isinstance(getattr(module, "weight", None), nn.Parameter):
            found[name] = module.weight
        elif kind_of(f"{name}.up_proj") == "experts":
            tensors = {f"{name}.{tensor}": value for tensor, value in module.named_parameters(recurse=False)}
            found |= {tensor: value for tensor, value in tensors.items() if kind_of(tensor) == "experts"}  # no biases
    return found


def only_merged(model: nn.Module) -> list[str]:
    """Layers next to a mixture's experts whose adapters PEFT cannot load, though it can train and merge them.

    PEFT 0.21 takes `gate_proj`, `up_proj` and `down_proj` of mixtures with a transformers 4 layout (DeepSeek, Qwen)
    for their experts, wherever they are: it then adapts experts instead of shared experts and dense layers.
    """
    base = weight_conversion._MODEL_TO_CONVERSION_PATTERN.get(getattr(model.config, "model_type", None))
    taken = weight_conversion._MOE_TARGET_MODULE_MAPPING.get(base, {})
    modules = model.named_modules()
    linear = [name.removesuffix(".base_layer") for name, module in modules if isinstance(module, nn.Linear)]
    return [name for name in linear if name.rpartition(".")[2] in taken]


@contextmanager
def names_as_they_are() -> Generator[None]:
    """Keep PEFT from taking names of today's layers for those of transformers 4 (`only_merged`)."""
    stock = weight_conversion.convert_peft_config_for_transformers
    weight_conversion.convert_peft_config_for_transformers = lambda *_, **__: None  # ty: ignore[invalid-assignment]
    try:
        yield
    finally:
        weight_conversion.convert_peft_config_for_transformers = stock


def tied(model: Any) -> list[str]:
    """Names of a model's head and embeddings, if they are one tensor."""
    head, embeddings = model.get_output_embeddings(), model.get_input_embeddings()
    if head is None or head.weight is not embeddings.weight:
        return []
    return [name for name, module in model.named_modules() if module is head or module is embeddings]


@contextmanager
def mamba_out_allowed() -> Generator[None]:
    """Let PEFT adapt Mamba's `out_proj`.

    PEFT refuses it, because the fused kernel reads the weight of `out_proj` without calling the module. `never_fuse`
    disables that kernel for our models, and `AdaptersReached` checks that every adapter gets a gradient.
    """
    stock = LoraModel._check_target_module_compatiblity
    LoraModel._check_target_module_compatiblity = lambda *_: None  # ty: ignore[invalid-assignment]
    try:
        yield
    finally:
        LoraModel._check_target_module_compatiblity = stock


def coverage(model: PeftModel) -> dict[str, Coverage]:
    """Coverage by kind of layer; layers that only `target_modules` can name come last."""
    found: dict[str, Coverage] = defaultdict(Coverage)
    adapters: dict[str, int] = defaultdict(int)
    for name, parameter in model.named_parameters():
        if "lora_" in name:
            adapters[layer_of(model, name)] += parameter.numel()
    base = model.get_base_model()
    kernels = {name for name, module in base.named_modules() if isinstance(module, CONVOLUTIONS)}
    matrices = {name for name in decayed(base) if name.rpartition(".")[0] not in kernels}
    for name, parameter in base.named_parameters():
        if name in matrices and "lora_" not in name:
            layer = name.replace(".base_layer", "").removesuffix(".weight")
            one = found[kind_of(layer)]
            one.layers, one.weights = one.layers + 1, one.weights + parameter.numel()
            one.adapted, one.trained = one.adapted + (layer in adapters), one.trained + adapters.get(layer, 0)
    order = [*BLOCK_KINDS, *PATTERNS]
    return dict(sorted(found.items(), key=lambda pair: order.index(pair[0]) if pair[0] in order else len(order)))


def layer_of(model: PeftModel, parameter: str) -> str:
    """The adapted layer of an adapter's parameter, such as `base_model.model.lm_head.lora_A.default.weight`."""
    wrapper = parameter.partition(".lora_")[0]
    name = wrapper.removeprefix("base_model.model.").replace(".base_layer", "")
    tensor = getattr(model.get_submodule(wrapper), "parameter_name", "weight")
    return name if tensor == "weight" else f"{name}.{tensor}"


def table(model: PeftModel, section: LoraSection) -> list[str]:
    """Lines that show what is trained; lists every kind, even if it is not adapted."""
    lines = [f"lora: rank {section.dim}, alpha {section.alpha}"]
    lines.append(f"{'kind':<16}{'layers':>12}{'trained':>15}{'of its weights':>17}")
    rows = coverage(model)
    for kind, one in rows.items():
        layers, share = f"{one.adapted} of {one.layers}", one.trained / one.weights
        lines.append(f"{kind:<16}{layers:>12}{one.trained:>15,}{share:>17.2%}")
    if section.layers is None and not section.target_modules and ONLY_NAMED in rows:
        lines.append(f"{ONLY_NAMED} is not adapted, so that PEFT can load the adapter; engine.peft.layers can add it")
    lines += _beside_the_experts(model, section)
    trained, total = count(model)
    return [*lines, f"trained: {trained:,} of {total:,} parameters ({trained / total:.2%})"]


def _beside_the_experts(model: PeftModel, section: LoraSection) -> list[str]:
    """The notice about layers that PEFT would take for experts."""
    base = model.get_base_model()
    kinds = {kind_of(name) for name in only_merged(base)}
    if not kinds:
        return []
    named = ", ".join(kind for kind in BLOCK_KINDS if kind in kinds)
    if section.layers is None and not section.target_modules:
        return [f"not adapted, so that PEFT can load the adapter: {named}; engine.peft.layers can add them"]
    adapted_kinds = {kind_of(layer_of(model, name)) for name, _ in model.named_parameters() if "lora_" in name}
    if not kinds & adapted_kinds:
        return []
    what = f"PEFT {version('peft')} cannot load adapters of {named} of this architecture"
    return [f"WARNING: {what}: use the merged model"]


def count(model: nn.Module) -> tuple[int, int]:
    """Number of trained parameters, and of all."""
    sizes = [(parameter.numel(), parameter.requires_grad) for parameter in model.parameters()]
    return sum(size for size, trained in sizes if trained), sum(size for size, _ in sizes)


# Every adapter takes part, or training stops before the first weight has changed: a fused kernel may use a layer's
# weight without calling the layer. `lora_B` begins at zero and gets a gradient from the first step on.


SECOND = ("lora_B.", "lora_embedding_B.")


class AdaptersReached(TrainerCallback):
    """Checks once, at the first step with any gradient: in RL, groups with equal rewards have none."""

    def __init__(self) -> None:
        self._looked = False

    def on_pre_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Compare all adapters before the optimizer changes one.

        Raises:
            UserError: some have a gradient and others have none.
        """
        if not self._looked:
            self._looked = require_reached(kwargs["model"])


def require_reached(model: PeftModel) -> bool:
    """Whether there are any gradients; they are averaged, so all processes see the same ones.

    Raises:
        UserError: some adapters get no gradient; the message names them.
    """
    second = {name: value for name, value in model.named_parameters() if any(one in name for one in SECOND)}
    reached = {name for name, value in second.items() if value.grad is not None and bool(value.grad.any())}
    passed_by = [layer_of(model, name) for name in second if name not in reached]
    if not reached or not passed_by:
        return bool(reached)
    if distributed.rank() != 0:
        raise SystemExit(2)  # every process sees the same gradients; one prints the error
    more = f" and {len(passed_by) - 3} more" if len(passed_by) > 3 else ""
    ends = {name.rpartition(".")[2] for name in passed_by}
    columns = zip(*(name.split(".") for name in passed_by), strict=False)
    within = ".".join(parts[0] for parts in takewhile(lambda parts: len({*parts}) == 1, columns))
    pattern = f"*{ends.pop()}" if len(ends) == 1 else f"{within}.*"
    raise UserError(
        f"engine.peft adapts {', '.join(passed_by[:3])}{more}, which get no gradient: they read no text, or a kernel "
        "reads the weight without calling the layer, so the adapter would never train",
        f"leave it out: engine.peft.exclude_modules=['{pattern}']",
    )
