"""Program: multi-token prediction and load balancing, by engine `transformers` and by megatron-core, as JSON on stdout.

Both models get the same weights, drawn here and converted by Bridge's AutoBridge, and the same batch, in float32. See
megatron_gradients.py for why it is a process of its own.
"""

import json
import sys
from pathlib import Path
from typing import Any

import torch
from megatron_gradients import LENGTH, VOCABULARY, Tokenizer, compare, norm
from safetensors.torch import load_file
from torch import Tensor

from nemotron_engines.modeling.build import random_model
from nemotron_engines.transformers.balance import LoadBalancing
from nemotron_shared.config.schema import ModelSection, TransformersEngine

DEPTHS, WEIGHT, COEFFICIENT, RATE = 2, 0.3, 0.05, 1e-3
ENGINE = TransformersEngine(
    name="transformers", device="cpu", attn_implementation="eager", allow_reference_kernels=False, dtype="float32",
    save_dtype=None, gradient_checkpointing=False, optimizer="adamw", strategy="ddp", peft=None,
    moe_router_bias_update_rate=RATE,
    moe_aux_loss_coeff=COEFFICIENT, mtp_num_layers=DEPTHS, mtp_loss_scaling_factor=WEIGHT,
)  # fmt: skip
Measured = dict[str, Any]


def by_transformers(ids: Tensor, folder: Path) -> tuple[Measured, dict[str, Tensor]]:
    """Figures, and gradients and corrections under the names of checkpoints; writes the weights into `folder`."""
    overrides = {"num_nextn_predict_layers": 1, "mtp_hybrid_override_pattern": "*E"}
    section = ModelSection(architecture="super3_tiny", overrides=overrides)
    model: Any = random_model(section, Tokenizer(), 11, ENGINE)
    model.mtp.passes, model.mtp.weight = DEPTHS, WEIGHT
    with torch.no_grad():  # what is zero or one would agree wherever it stands
        for name, value in model.state_dict().items():
            if name.endswith("e_score_correction_bias"):
                value.copy_(torch.linspace(-0.2, 0.2, len(value)))
            if name.startswith("mtp.") and "norm" in name:
                value.copy_(torch.linspace(0.5, 1.5, len(value)))
    model.save_pretrained(folder)
    logits = model.eval()(input_ids=ids, use_cache=False).logits.detach()
    balancing = LoadBalancing(model.train(), ENGINE, DEPTHS)
    with balancing.passing(1.0, None):
        loss = model(input_ids=ids, labels=ids, use_cache=False).loss
    loss.backward()
    figures = {
        "loss": loss.item(),
        "mtp_losses": list(model.mtp.take().values()),
        "load_balancing_losses": [router.loss.item() for router in balancing.routers],
        "tokens": [router.tokens.tolist() for router in balancing.routers],
        "logits": logits,
    }
    nothing: Any = None
    balancing.on_pre_optimizer_step(nothing, nothing, nothing)
    _gradients_into_weights(model)
    model.save_pretrained(folder / "gradients")
    return figures, load_file(folder / "gradients" / "model.safetensors")


def by_megatron(ids: Tensor, folder: Path) -> tuple[Measured, dict[str, Tensor]]:
    """The same by megatron-core's HybridModel, its gradients and corrections converted back."""
    from nemotron_engines.megatron_bridge.loop import megatron_process
    from nemotron_engines.stand_ins.megatron_settings import use_cpu_model
    from nemotron_engines.stand_ins.transformer_engine import install_stubs

    install_stubs()
    from nemotron_engines.megatron_bridge.convert import bridge_of

    _name_the_separate_norm()
    bridge = bridge_of(folder)
    provider = bridge.to_megatron_provider(load_weights=False)
    assert (provider.mtp_num_layers, provider.mtp_use_repeated_layer) == (1, True)
    use_cpu_model(provider)
    provider.mtp_num_layers, provider.mtp_loss_scaling_factor = DEPTHS, WEIGHT
    provider.moe_aux_loss_coeff, provider.moe_router_bias_update_rate = COEFFICIENT, RATE
    with megatron_process(on_cpu=True):
        return _megatron_step(bridge, provider, ids)


def _name_the_separate_norm() -> None:
    """Bridge knows the norm before the block's attention as a part of Transformer Engine's fused layer only."""
    from megatron.bridge.models.conversion.mapping_registry import (  # ty: ignore[import-not-found]
        MegatronMappingRegistry,
    )
    from megatron.bridge.models.nemotronh import nemotron_h_bridge  # ty: ignore[import-not-found]

    known = nemotron_h_bridge.NemotronHBridge.mapping_registry

    def mapping_registry(self: Any) -> Any:
        name = "mtp.layers.*.mtp_model_layer.layers.*.input_layernorm.weight"
        norm = nemotron_h_bridge._MTPFlatteningMapping(name, "mtp.layers.*.norm.weight", mtp_layers_per_block=2)
        return MegatronMappingRegistry(*known(self).mappings, norm)

    nemotron_h_bridge.NemotronHBridge.mapping_registry = mapping_registry


def _megatron_step(bridge: Any, provider: Any, ids: Tensor) -> tuple[Measured, dict[str, Tensor]]:
    from megatron.core import parallel_state, tensor_parallel  # ty: ignore[import-not-found]
    from megatron.core.distributed.finalize_model_grads import (  # ty: ignore[import-not-found]
        _update_router_expert_bias,
    )
    from megatron.core.transformer.moe.moe_logging import (  # ty: ignore[import-not-found]
        destroy_moe_metrics_tracker,
        get_moe_metrics_tracker,
    )
    from megatron.core.transformer.multi_token_prediction import (  # ty: ignore[import-not-found]
        MTPLossLoggingHelper,
    )

    parallel_state.initialize_model_parallel()
    tensor_parallel.model_parallel_cuda_manual_seed(1)
    provider.finalize()
    [model] = provider.provide_distributed_model(wrap_with_ddp=False)
    bridge.load_hf_weights([model])
    routers = [module for module in model.modules() if hasattr(module, "local_tokens_per_expert")]
    # megatron-core 0.19 tells a hybrid's attention that it is of the block, and not its router, which then counts its
    # auxiliary loss once for each depth; later versions tell both.
    routers[-1].is_mtp_layer = True
    positions = torch.arange(ids.shape[1]).expand_as(ids)
    logits = model.eval()(ids, positions, None).detach()
    for router in routers:
        router.local_tokens_per_expert.zero_()
    MTPLossLoggingHelper.tracker.clear()
    destroy_moe_metrics_tracker()
    model.train()
    mask = torch.ones_like(ids)
    mask[:, -1] = 0
    losses = model(ids, positions, None, labels=ids.roll(-1, 1), loss_mask=mask)
    loss = losses[:, :-1].mean()
    loss.backward()
    balanced = get_moe_metrics_tracker().metrics["seq_load_balancing_loss"].values
    figures = {
        "loss": loss.item(),
        "mtp_losses": MTPLossLoggingHelper.tracker["loss_values"].tolist(),
        "load_balancing_losses": balanced[balanced > 0].tolist(),
        "tokens": [router.local_tokens_per_expert.int().tolist() for router in routers],
        "logits": logits,
    }
    _update_router_expert_bias([model], model.config)
    _gradients_into_weights(model)
    return figures, dict(bridge.export_hf_weights([model], cpu=True, show_progress=False))


def _gradients_into_weights(model: torch.nn.Module) -> None:
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(parameter.grad)


def main() -> None:
    """Compare, and print."""
    torch.set_num_threads(1)
    folder, out = Path(sys.argv[1]), sys.stdout
    sys.stdout = sys.stderr
    ids = torch.randint(3, VOCABULARY, (2, LENGTH), generator=torch.Generator().manual_seed(5))
    (ours, our_gradients), (theirs, their_gradients) = by_transformers(ids, folder), by_megatron(ids, folder)
    corrections = [name for name in our_gradients if name.endswith("e_score_correction_bias")]
    one, other = ours.pop("logits"), theirs.pop("logits")
    result = {
        "ours": ours,
        "theirs": theirs,
        "logits": float((one - other).norm() / one.norm()),
        "corrections": [[our_gradients[name].tolist(), their_gradients[name].tolist()] for name in corrections],
        "grad_norm": [norm(our_gradients), norm(their_gradients)],
        "names_differ": sorted(set(our_gradients) ^ set(their_gradients)),
        "worst": compare(our_gradients, their_gradients),
    }
    print(json.dumps(result), file=out)


if __name__ == "__main__":
    main()
