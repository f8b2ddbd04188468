"""Program: loss and gradients of one model, by transformers' NemotronH and by megatron-core; a JSON object on stdout.

It runs in a process of its own, because faking `torch.cuda` changes the process. Both models get the same tiny
Super 3 weights (drawn by transformers, converted by Bridge's AutoBridge) and the same batch, in float32.
"""

import json
import re
import sys
from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from nemotron_engines.modeling.build import random_model
from nemotron_shared.config.schema import ModelSection

VOCABULARY, LENGTH = 512, 96
ENGINE = SimpleNamespace(attn_implementation="eager", allow_reference_kernels=False)


class Tokenizer:
    """What making a model asks a tokenizer."""

    bos_token_id, eos_token_id, pad_token_id = 0, 1, 2

    def __len__(self) -> int:
        return VOCABULARY


def by_transformers(ids: torch.Tensor, folder: Path) -> tuple[float, dict[str, torch.Tensor]]:
    """Loss, and gradients under the names of checkpoints; writes the weights into `folder`."""
    model = random_model(ModelSection(architecture="super3_tiny", overrides={}), Tokenizer(), 11, ENGINE).train()
    with torch.no_grad():  # a correction that is zero would agree whatever is done with it
        for name, buffer in model.named_buffers():
            if name.endswith("e_score_correction_bias"):
                buffer.copy_(torch.linspace(-0.2, 0.2, len(buffer)))
    model.save_pretrained(folder)
    loss = model(input_ids=ids, labels=ids, use_cache=False).loss
    loss.backward()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(parameter.grad)
    model.save_pretrained(folder / "gradients")
    from safetensors.torch import load_file

    return loss.item(), load_file(folder / "gradients" / "model.safetensors")


def by_megatron(ids: torch.Tensor, folder: Path) -> tuple[float, dict[str, torch.Tensor]]:
    """The same by megatron-core's HybridModel, its gradients converted back."""
    from nemotron_engines.megatron_bridge.loop import megatron_process
    from nemotron_engines.stand_ins.megatron_settings import use_cpu_model
    from nemotron_engines.stand_ins.transformer_engine import install_stubs

    install_stubs()
    from nemotron_engines.megatron_bridge.convert import bridge_of

    bridge = bridge_of(folder)
    provider = bridge.to_megatron_provider(load_weights=False)
    use_cpu_model(provider)
    provider.moe_aux_loss_coeff = 0.0  # transformers adds no load-balancing loss
    with megatron_process(on_cpu=True):
        return _megatron_step(bridge, provider, ids)


def _megatron_step(bridge: Any, provider: Any, ids: torch.Tensor) -> tuple[float, dict[str, torch.Tensor]]:
    from megatron.core import parallel_state, tensor_parallel  # ty: ignore[import-not-found]

    parallel_state.initialize_model_parallel()
    tensor_parallel.model_parallel_cuda_manual_seed(1)
    provider.finalize()
    [model] = provider.provide_distributed_model(wrap_with_ddp=False)
    bridge.load_hf_weights([model])
    model.train()
    positions = torch.arange(ids.shape[1]).expand_as(ids)
    loss = model(ids, positions, None, labels=ids.roll(-1, 1))[:, :-1].mean()
    loss.backward()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(parameter.grad)
    return loss.item(), dict(bridge.export_hf_weights([model], cpu=True, show_progress=False))


def compare(ours: dict[str, torch.Tensor], theirs: dict[str, torch.Tensor]) -> dict[str, float]:
    """Worst relative error (norm of the difference / norm) per kind of parameter."""
    worst: dict[str, float] = defaultdict(float)
    for name, value in ours.items():
        if not name.endswith("e_score_correction_bias"):  # a buffer: it has no gradient
            kind = re.sub(r"\.\d+\.", ".*.", name)
            error = (theirs[name] - value).norm() / value.norm().clamp_min(1e-30)
            worst[kind] = max(worst[kind], error.item())
    return dict(worst)


def norm(gradients: dict[str, torch.Tensor]) -> float:
    """Of all gradients together."""
    squares = [g.double().square().sum() for name, g in gradients.items() if not name.endswith("correction_bias")]
    return float(torch.stack(squares).sum().sqrt())


def main() -> None:
    """Compare, and print."""
    torch.set_num_threads(1)
    folder, out = Path(sys.argv[1]), sys.stdout
    sys.stdout = sys.stderr
    ids = torch.randint(3, VOCABULARY, (2, LENGTH), generator=torch.Generator().manual_seed(5))
    our_loss, ours = by_transformers(ids, folder)
    their_loss, theirs = by_megatron(ids, folder)
    result = {
        "loss": [our_loss, their_loss],
        "grad_norm": [norm(ours), norm(theirs)],
        "names_differ": sorted(set(ours) ^ set(theirs)),
        "worst": compare(ours, theirs),
    }
    print(json.dumps(result), file=out)


if __name__ == "__main__":
    main()
