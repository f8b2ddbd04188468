"""Speed-up of the Mamba reference kernels over the fallback inside transformers, on one CPU thread.

    python benchmarks/mamba_cpu.py [--rounds 15] [--json]

Every case first checks that both give the same results, then times them alternately. Reported is the median over the
rounds of the ratio within one round, in CPU time, so that other programs on the machine have little influence.
"""

import os

os.environ["OMP_NUM_THREADS"] = "1"  # before torch is imported

import argparse
import json
import platform
import statistics
import sys
import time
from collections.abc import Callable
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
import transformers
from torch import Tensor
from transformers import NemotronHConfig, NemotronHForCausalLM, PreTrainedModel
from transformers.models.nemotron_h import modeling_nemotron_h as modeling

from nemotron_engines.kernels.experts import register_cpu_experts
from nemotron_engines.kernels.mamba_install import REFERENCE_KERNELS, install_cpu_ops
from nemotron_engines.modeling.packed import packed_inputs

# batch, length, heads, channels per head, groups, state size
SCANS = [(16, 128, 8, 16, 2, 16), (8, 256, 8, 32, 2, 16), (8, 256, 8, 32, 2, 64), (8, 512, 16, 32, 8, 64)]
CHUNK = 32
STOCK = {name: getattr(modeling, name) for name in REFERENCE_KERNELS}
TOLERANCE = 2e-5


class Case(NamedTuple):
    name: str
    stock: Callable[[], list[Tensor]]
    reference: Callable[[], list[Tensor]]
    comparable: bool = True


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--rounds", type=int, default=15)
    arguments.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    options = arguments.parse_args()
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    install_cpu_ops()
    rows = [measure(case, options.rounds) for case in cases()]
    print(json.dumps(report(rows), indent=2) if options.json else table(rows))
    return 0


def cases() -> list[Case]:
    return [scan_case(shape) for shape in SCANS] + [convolution_case()] + model_cases()


def measure(case: Case, rounds: int) -> dict[str, Any]:
    """Check that both agree, then time them alternately."""
    difference = largest_difference(case) if case.comparable else None
    if difference is not None and difference > TOLERANCE:
        sys.exit(f"{case.name}: the results differ by {difference:.1e}, which is more than {TOLERANCE:.0e}")
    case.stock(), case.reference()
    pairs = [(cpu_seconds(case.stock), cpu_seconds(case.reference)) for _ in range(rounds)]
    return {
        "case": case.name,
        "stock_ms": 1e3 * statistics.median(stock for stock, _ in pairs),
        "reference_ms": 1e3 * statistics.median(reference for _, reference in pairs),
        "ratio": statistics.median(stock / reference for stock, reference in pairs),
        "difference": difference,
    }


def largest_difference(case: Case) -> float:
    """Largest relative difference (of norms) between the results of the two."""
    pairs = zip(case.stock(), case.reference(), strict=True)
    return max(((one - other).norm() / one.norm()).item() for one, other in pairs)


def cpu_seconds(run: Callable[[], Any]) -> float:
    start = time.process_time()
    run()
    return time.process_time() - start


def scan_case(shape: tuple[int, ...]) -> Case:
    """Forward and backward of one scan."""
    batch, length, heads, _, groups, size = shape
    torch.manual_seed(0)
    keywords = {
        "A": -torch.arange(1.0, heads + 1),
        "B": torch.randn(batch, length, groups, size),
        "C": torch.randn(batch, length, groups, size),
        "D": torch.ones(heads),
        "dt_bias": torch.randn(heads) / 2 - 3,
    }
    inputs = [torch.randn(*shape[:4]), torch.randn(*shape[:3])]
    leaves = [t.requires_grad_() for t in (*inputs, *keywords.values())]
    upstream = torch.randn(*shape[:4])

    def with_function(scan: Callable[..., Tensor]) -> Callable[[], list[Tensor]]:
        def run() -> list[Tensor]:
            y = scan(*inputs, **keywords, chunk_size=CHUNK, dt_softplus=True, dt_limit=(1e-3, float("inf")))
            return [y.detach(), *torch.autograd.grad(y, leaves, upstream)]

        return run

    name = "mamba2_chunk_scan"
    return Case(f"scan {shape}", with_function(STOCK[name]), with_function(getattr(modeling, name)))


def convolution_case() -> Case:
    """Forward and backward of the convolution in the memory order that the model uses."""
    torch.manual_seed(0)
    leaves = [torch.randn(16, 128, 192), torch.randn(192, 4), torch.randn(192)]
    leaves, upstream = [t.requires_grad_() for t in leaves], torch.randn(16, 128, 192)

    def with_function(convolve: Callable[..., Tensor]) -> Callable[[], list[Tensor]]:
        def run() -> list[Tensor]:
            out = convolve(leaves[0].mT, leaves[1], leaves[2], activation="silu")
            return [out.detach(), *torch.autograd.grad(out, leaves, upstream.mT)]

        return run

    name = "causal_conv1d_fn"
    return Case("convolution (16, 128, 192)", with_function(STOCK[name]), with_function(getattr(modeling, name)))


def tiny_model() -> PreTrainedModel:
    torch.manual_seed(0)
    config = NemotronHConfig(
        hybrid_override_pattern="MEM*EME", hidden_size=64, vocab_size=512, num_attention_heads=4,
        num_key_value_heads=2, head_dim=16, mamba_num_heads=8, mamba_head_dim=16, n_groups=2, ssm_state_size=16,
        conv_kernel=4, chunk_size=CHUNK, n_routed_experts=8, num_experts_per_tok=2, moe_intermediate_size=64,
        moe_shared_expert_intermediate_size=64,
    )  # fmt: skip
    return NemotronHForCausalLM(config)


def model_cases() -> list[Case]:
    """Whole training steps and greedy generation; stock with transformers' default experts, grouped_mm."""
    model, fast_experts = tiny_model(), register_cpu_experts()
    ids = torch.randint(3, 512, (16, 128), generator=torch.Generator().manual_seed(0))
    packed = packed_inputs([range(0, 128, 16)] * 16, 128)
    prompts = torch.randint(3, 512, (128, 24), generator=torch.Generator().manual_seed(0))

    def step(**inputs: Tensor) -> list[Tensor]:
        model.train().zero_grad()
        loss = model(ids, labels=ids, use_cache=False, **inputs).loss
        loss.backward()
        return [loss.detach(), torch.cat([p.grad.flatten() for p in model.parameters()])]

    def generate() -> list[Tensor]:
        options = {"max_new_tokens": 32, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
        return [model.eval().generate(prompts, attention_mask=torch.ones_like(prompts), **options).float()]

    def stock(run: Callable[..., list[Tensor]]) -> Callable[[], list[Tensor]]:
        def wrapped() -> list[Tensor]:
            with stock_functions():
                model.set_experts_implementation("grouped_mm")
                return run()

        return wrapped

    def reference(run: Callable[..., list[Tensor]], experts: str, **inputs: Tensor) -> Callable[[], list[Tensor]]:
        def wrapped() -> list[Tensor]:
            model.set_experts_implementation(experts)
            return run(**inputs)

        return wrapped

    return [
        Case("model step, reference", stock(step), reference(step, "grouped_mm")),
        Case("model step, reference and experts", stock(step), reference(step, fast_experts)),
        Case("model step, packed rows", stock(step), reference(step, fast_experts, **packed), comparable=False),
        Case("generation, reference", stock(generate), reference(generate, "grouped_mm")),
        Case("generation, reference and experts", stock(generate), reference(generate, fast_experts)),
    ]


@contextmanager
def stock_functions():
    """Use transformers' own functions within a block."""
    installed = {name: getattr(modeling, name) for name in STOCK}
    try:
        for name, function in STOCK.items():
            setattr(modeling, name, function)
        yield
    finally:
        for name, function in installed.items():
            setattr(modeling, name, function)


def report(rows: list[dict[str, Any]]) -> dict[str, Any]:
    versions = {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }
    return {"threads": torch.get_num_threads(), "versions": versions, "cases": rows}


def table(rows: list[dict[str, Any]]) -> str:
    lines = [f"{'case':34} {'stock ms':>9} {'ref. ms':>9} {'ratio':>6}  difference"]
    for row in rows:
        difference = "not comparable" if row["difference"] is None else f"{row['difference']:.1e}"
        lines.append(
            f"{row['case']:34} {row['stock_ms']:9.1f} {row['reference_ms']:9.1f} {row['ratio']:6.2f}  {difference}"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
