"""Program: an adapter of ours in Megatron-Bridge's own LoRA classes, and back; a JSON object on stdout.

It runs in a process of its own, because faking `torch.cuda` changes the process. Both models get the same tiny Super 3
weights in float32. Bridge keeps one matrix for query, key and value in `LoRA`, and three in `CanonicalLoRA`, as PEFT.
"""

import json
import sys
from pathlib import Path
from typing import Any

import torch
from megatron_gradients import ENGINE, VOCABULARY, Tokenizer
from safetensors.torch import load_file

from nemotron_engines.lora.adapt import adapted
from nemotron_engines.lora.export import save_adapter
from nemotron_engines.modeling.build import random_model
from nemotron_shared.config.schema import LoraSection, ModelSection
from nemotron_shared.models.weights import ADAPTER_CONFIG, ADAPTER_WEIGHTS

KINDS = ["attention", "mamba_in", "shared_experts"]
SECTION = LoraSection(dim=8, alpha=16, dropout=0.0, layers=KINDS, target_modules=[], exclude_modules=[])
ATTENTION = ["linear_q", "linear_k", "linear_v", "linear_proj"]
OTHERS = ["in_proj", "*.shared_experts.linear_fc1", "*.shared_experts.linear_fc2"]
HERE, PUBLISHED = "base_model.model.model.", "base_model.model.backbone."
"""How names begin in transformers' class and in the published models, which Bridge follows; PEFT loads both."""


def learned_here(ids: torch.Tensor, folder: Path) -> dict[str, torch.Tensor]:
    """Logits of a model and of it with an adapter; both are saved."""
    model = random_model(ModelSection(architecture="super3_tiny", overrides={}), Tokenizer(), 11, ENGINE).eval()
    model.save_pretrained(folder / "base")
    with torch.no_grad():
        plain = model(input_ids=ids, use_cache=False).logits
        tuned = adapted(model, SECTION, 1)
        draw = torch.Generator().manual_seed(3)
        for name, value in tuned.named_parameters():  # as if it had been trained: lora_B begins at zero
            if "lora_B" in name:
                value.copy_(0.05 * torch.randn(value.shape, generator=draw))
        save_adapter(tuned, folder / "adapter", str(folder / "base"))
        return {"plain": plain, "tuned": tuned.eval()(input_ids=ids, use_cache=False).logits}


def through_bridge(ids: torch.Tensor, folder: Path) -> torch.Tensor:
    """Logits of megatron-core's model with the same adapter, which Bridge then exports."""
    from nemotron_engines.megatron_bridge.loop import megatron_process
    from nemotron_engines.stand_ins.megatron_settings import use_cpu_model
    from nemotron_engines.stand_ins.transformer_engine import install_stubs

    install_stubs()
    import megatron.bridge.peft.utils as classes  # ty: ignore[unresolved-import]
    from megatron.bridge.peft.canonical_lora import CanonicalLoRA  # ty: ignore[unresolved-import]
    from megatron.bridge.peft.lora import LoRA  # ty: ignore[unresolved-import]

    from nemotron_engines.megatron_bridge.convert import bridge_of

    classes.HAVE_TE = False  # its classes are stubs here, which nothing is an instance of
    bridge = bridge_of(folder / "base")
    provider = bridge.to_megatron_provider(load_weights=False)
    use_cpu_model(provider)
    with megatron_process(on_cpu=True):
        from megatron.core import parallel_state, tensor_parallel  # ty: ignore[unresolved-import]

        parallel_state.initialize_model_parallel()
        tensor_parallel.model_parallel_cuda_manual_seed(1)
        provider.finalize()
        [model] = provider.provide_distributed_model(wrap_with_ddp=False)
        bridge.load_hf_weights([model])
        lora = LoRA(target_modules=OTHERS, dim=SECTION.dim, alpha=SECTION.alpha, dropout=0.0)
        split = CanonicalLoRA(target_modules=ATTENTION, dim=SECTION.dim, alpha=SECTION.alpha, dropout=0.0)
        [model] = split(lora([model], training=False), training=False)
        fill(bridge, model, load_file(folder / "adapter" / ADAPTER_WEIGHTS))
        with torch.no_grad():
            logits = model.eval()(ids, torch.arange(ids.shape[1]).expand_as(ids), None)
        bridge.save_hf_adapter([model], folder / "back", lora, str(folder / "base"), show_progress=False)
    return logits


def fill(bridge: Any, model: Any, adapter: dict[str, torch.Tensor]) -> None:
    """Put every tensor of an adapter in PEFT's layout where Bridge itself looks for it when it exports."""
    left = {name.replace(HERE, PUBLISHED): value for name, value in adapter.items()}
    tasks = bridge._model_bridge.build_adapter_conversion_tasks([model])
    for task in (task for several in tasks.values() for task in several):
        for half in (task.linear_in_task, task.linear_out_task):
            with torch.no_grad():
                half.param_weight.copy_(left.pop(f"base_model.model.{half.mapping.hf_param}"))
    assert not left, f"no place in Bridge's model for {sorted(left)}"


def loaded_again(ids: torch.Tensor, folder: Path) -> torch.Tensor:
    """Logits of transformers' model with what Bridge exported, as stock PEFT loads it."""
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    base = AutoModelForCausalLM.from_pretrained(folder / "base", attn_implementation="eager")
    with torch.no_grad():
        return PeftModel.from_pretrained(base, folder / "back").eval()(input_ids=ids, use_cache=False).logits


def apart(one: torch.Tensor, other: torch.Tensor) -> float:
    """Length of the difference in parts of the other's."""
    return float((one - other).norm() / other.norm())


def main() -> None:
    """Compare, and print."""
    torch.set_num_threads(1)
    folder, out = Path(sys.argv[1]), sys.stdout
    sys.stdout = sys.stderr
    ids = torch.randint(3, VOCABULARY, (2, 48), generator=torch.Generator().manual_seed(5))
    ours = learned_here(ids, folder)
    there = through_bridge(ids, folder)
    went, back = (load_file(folder / name / ADAPTER_WEIGHTS) for name in ("adapter", "back"))
    went = {name.replace(HERE, PUBLISHED): value for name, value in went.items()}
    config = json.loads((folder / "back" / ADAPTER_CONFIG).read_text())
    result = {
        "tensors": len(went),
        "names_differ": sorted(set(went) ^ set(back)),
        "bits_differ": sorted(name for name in set(went) & set(back) if not torch.equal(went[name], back[name])),
        "moved": apart(ours["tuned"], ours["plain"]),
        "apart": apart(there, ours["tuned"]),
        "apart_again": apart(loaded_again(ids, folder), ours["tuned"]),
        "config": {key: config[key] for key in ("r", "lora_alpha", "peft_type")},
    }
    print(json.dumps(result), file=out)


if __name__ == "__main__":
    main()
