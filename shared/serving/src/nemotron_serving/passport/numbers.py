"""The third and fourth part of a passport: the same prompts through the model and its export, in each runtime.

The model's side is transformers in float32. A runtime may differ from it as much as rounding its weights to the
export's type does in that very model (measured each time), or, in float32, as much as two right programs do.
"""

import gc
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from nemotron_engines.modeling.build import ONLY_MADE, load_model
from nemotron_engines.modeling.stored import TYPES, Stored, size_of
from nemotron_serving.passport.parts import Part
from nemotron_serving.passport.rows import Row, Rows
from nemotron_shared.machine.machine import GB
from nemotron_shared.models.scales import FLOATS
from nemotron_shared.system.errors import UserError

RANDOM, GREEDY = 96, 16
"""Tokens of the random prompt, and of an answer. A router's bias that was lost showed in random tokens only."""
SAME = 1e-7
"""Mean KL of two right programs in float32. Measured: 2e-13 with other chunks, 7e-10 for llama.cpp, 2e-8 for vLLM;
the smallest of ten faults that logits can show: 1e-6."""
SAME_LAYER = 1e-5
"""How far the output of a layer may be off in float32, in parts of its length: the same program gives the same bits."""
ROUNDING = 10
"""How many times the median KL of rounding alone a runtime may have. Measured for llama.cpp in BF16, F16 and Q8_0, with
three small models and 24 prompts: 0.26 to 3.3. Means were up to 17 times as large: where two experts are equally
likely, rounding chooses another one, in another program for another token."""
BLOCK = 32
"""Values of a block of Q8_0."""
RESAMPLES, SEED = 2000, 0
SHARE_OF_MEMORY = 0.4
"""Of the machine's memory, what a model may take in float32 to be run for a passport."""
SMALL = 50_000_000
"""Parameters below which one thread computes: on a busy machine, two took four times as long."""
LARGEST_SHIFT = 0.01
"""Bits per token that an export's held-out rows may cost more, beyond the interval."""


@dataclass(frozen=True)
class Readings:
    """What a model made of the prompts.

    Attributes:
        logps: by prompt, log-probabilities (tokens, vocabulary) float64.
        greedy: by prompt, the likeliest next tokens, one after another.
        bits: (rows, 2): bits of a held-out row's learnt tokens, and how many they are.
        layers: by layer, what it makes of the first prompt (tokens, width); empty where a runtime does not tell.
    """

    logps: dict[str, np.ndarray]
    greedy: dict[str, list[int]]
    bits: np.ndarray
    layers: dict[str, np.ndarray] = field(default_factory=dict)


@dataclass(frozen=True)
class Limit:
    """Largest KL of a prompt: of its tokens' mean, or of their median."""

    kl: float
    median: bool = False

    def holds(self, kl: np.ndarray) -> bool:
        """Whether the KL of each token (tokens) is small enough."""
        return bool((np.median(kl) if self.median else kl.mean()) <= self.kl)

    def told(self, kl: np.ndarray) -> str:
        """The limit, and what it is for."""
        return f"median {np.median(kl):.1e}, allowed {self.kl:.1e}" if self.median else f"allowed {self.kl:.1e}"


def prompts_of(vocabulary: int, rows: Rows, reserved: int = 0) -> dict[str, list[int]]:
    """Random ids, and rows that were trained on."""
    ids = np.random.default_rng(SEED).integers(reserved, vocabulary, RANDOM)
    found = {"random tokens": ids.tolist()}
    if rows.trained:
        found["trained row"] = rows.trained[0].ids[:RANDOM].tolist()
    return found


def require_fit(tensors: dict[str, Stored], memory: float) -> None:
    """Refuse to run a model in float32 that takes too much of a machine's memory, in bytes.

    Raises:
        UserError: it does.
    """
    if (needed := sum(size_of(one, "F32") for one in tensors.values())) > SHARE_OF_MEMORY * memory:
        raise UserError(f"it takes {needed / GB:.1f} GB in float32", "use a larger machine")


@torch.no_grad()
def read(folder: Path, prompts: dict[str, list[int]], held: Sequence[Row], change: Callable[[Any], Any] | None = None,
         *, trusted: bool = False) -> Readings:  # fmt: skip
    """Run a folder with transformers in float32.

    Args:
        change: what is done with the loaded model first, such as rounding its weights.
    """
    model: Any = load_model(folder, ONLY_MADE, trusted=trusted, dtype=torch.float32).eval()
    threads = torch.get_num_threads()
    if model.num_parameters() < SMALL:
        torch.set_num_threads(1)
    if change is not None:
        model = change(model)
    logps, greedy, layers = {}, {}, dict[str, np.ndarray]()
    for name, ids in prompts.items():
        given = torch.tensor([ids])
        made = model(given, use_cache=False, output_hidden_states=True)
        logps[name] = made.logits[0].double().log_softmax(-1).numpy()
        layers = layers or _by_layer(model, made.hidden_states or ())
        start = given[:, : max(1, len(ids) // 3)]
        for _ in range(GREEDY):
            start = torch.cat([start, model(start, use_cache=False).logits[:, -1:].argmax(-1)], dim=1)
        greedy[name] = start[0, -GREEDY:].tolist()
    bits = np.zeros((len(held), 2))
    for number, row in enumerate(held):
        given = torch.tensor(row.ids.astype(np.int64))[None]
        scores = model(given, use_cache=False).logits[0].double().log_softmax(-1)
        learnt = torch.tensor(row.learnt)[1:]
        picked = scores[:-1].gather(1, given[0, 1:, None])[:, 0][learnt]
        bits[number] = -float(picked.sum()) / np.log(2), int(learnt.sum())
    torch.set_num_threads(threads)
    del model
    gc.collect()
    return Readings(logps, greedy, bits, layers)


def _by_layer(model: Any, outputs: Sequence[torch.Tensor]) -> dict[str, np.ndarray]:
    """What the embeddings and each layer made of a prompt; the last one's after the norm at the end."""
    kinds = getattr(model.config, "layers_block_type", None)
    names = [f"layer {number}" + (f" ({kinds[number]})" if kinds else "") for number in range(len(outputs) - 1)]
    return {name: made[0].float().numpy() for name, made in zip(["embeddings", *names], outputs, strict=False)}


def as_llama_cpp_computes(kind: str) -> Callable[[Any], Any] | None:
    """What makes of a model one that rounds as a GGUF file of this type; None where it is not known.

    llama.cpp rounds what it multiplies to the type of the weights, too.
    """
    if kind in ("BF16", "F16"):
        return lambda model: model.to(TYPES[kind])
    if kind == "Q8_0":
        return _through_blocks
    return (lambda model: model) if kind == "F32" else None


def _through_blocks(model: Any) -> Any:
    """Round matrices to blocks of 32 whole numbers with one scale, as Q8_0 stores them."""
    for parameter in model.parameters():
        if parameter.dim() > 1 and parameter.shape[-1] % BLOCK == 0:
            blocks = parameter.reshape(-1, BLOCK)
            scale = (blocks.abs().amax(-1, keepdim=True) / 127).half().float()
            whole = torch.where(scale > 0, blocks / scale, 0).round().clamp(-127, 127)
            parameter.copy_((whole * scale).reshape(parameter.shape))
    return model


def rounded_to(dtype: str) -> Callable[[Any], Any]:
    """Round a model's weights to a type of safetensors, and keep computing in float32."""

    def change(model: Any) -> Any:
        for parameter in model.parameters():
            parameter.copy_(parameter.to(TYPES[dtype]).float())
        return model

    return change


def divergence(before: np.ndarray, after: np.ndarray) -> np.ndarray:
    """KL of each position (tokens) from log-probabilities (tokens, vocabulary)."""
    return (np.exp(before) * (before - after)).sum(-1)


def compare_numbers(name: str, before: Readings, after: Readings, allowed: Limit | None, part: Part) -> None:
    """Add what a runtime makes of the prompts.

    Args:
        allowed: None if it is not to be judged.
    """
    for prompt, logps in before.logps.items():
        other = after.logps[prompt][:, : logps.shape[1]]
        if other.shape != logps.shape or not np.isfinite(other).all():
            part.find(f"{name}, {prompt}", "gives no number for some tokens")
            continue
        kl = divergence(logps, other)
        argmax = float((logps.argmax(-1) == other.argmax(-1)).mean())
        same = sum(a == b for a, b in zip(before.greedy[prompt], after.greedy[prompt], strict=True))
        limit = "not judged" if allowed is None else allowed.told(kl)
        told = f"KL {kl.mean():.1e} ({limit}), likeliest token the same in {argmax:.1%}"
        part.facts.append((f"{name}, {prompt}", f"{told}, {same} of {GREEDY} greedy tokens"))
        part.judged &= allowed is not None
        if allowed is not None and not allowed.holds(kl):
            part.find(f"{name}, {prompt}", told)


def compare_layers(before: Readings, after: Readings, floor: Readings | None, part: Part) -> None:
    """Name the first layer whose output differs by more than rounding makes of it."""
    most = 0.0
    for name, values in before.layers.items():
        off = _apart(values, after.layers.get(name))
        limit = max(SAME_LAYER, 0.0 if floor is None else ROUNDING * _apart(values, floor.layers[name]))
        if not off <= limit:
            told = f"is the first whose output differs, by {off:.1e} of its length (allowed {limit:.1e})"
            part.find(f"transformers, {name}", f"{told}; before it, {most:.1e} at most")
            return
        most = max(most, off)
    if before.layers:
        part.facts.append(
            ("transformers, layers", f"{len(before.layers)}, outputs apart by {most:.1e} of their length")
        )


def _apart(values: np.ndarray, other: np.ndarray | None) -> float:
    """Median over tokens of how far the outputs of a layer (tokens, width) are apart, in parts of their length."""
    if other is None or other.shape != values.shape:
        return math.inf
    lengths = np.linalg.norm(values, axis=-1)
    return float(np.median(np.linalg.norm(values - other, axis=-1) / np.where(lengths > 0, lengths, 1)))


def allowed_for(dtypes: set[str], before: Readings, floor: Readings | None) -> Limit:
    """What a folder may differ by: of rounding, if there is any, else of two right programs."""
    return Limit(SAME) if floor is None or not dtypes & {*FLOATS} - {"F32", "F64"} else allowed(before, floor)


def allowed(before: Readings, floor: Readings) -> Limit:
    """What a runtime may differ by, if the model itself, rounded as the export is, differs as `floor` does."""
    worst = max(float(np.median(divergence(before.logps[name], floor.logps[name]))) for name in before.logps)
    return Limit(ROUNDING * worst, median=True) if worst * ROUNDING > SAME else Limit(SAME)


def compare_task(name: str, before: Readings, after: Readings, rows: Rows, part: Part, *, judged: bool = True) -> None:
    """Bits per learnt token of the held-out rows in both, with the difference's paired 95 % interval."""
    old, new = (float(side.bits[:, 0].sum() / side.bits[:, 1].sum()) for side in (before, after))
    low, high = shift(before, after)
    part.facts.append((f"{name}, rows", f"{len(before.bits)} of {rows.data}, split {rows.held_back}"))
    told = f"{old:.4f} bits per learnt token in the model, {new:.4f} in the export"
    part.facts.append((f"{name}, held-out rows", told))
    part.facts.append((f"{name}, difference", f"{new - old:+.4f}, paired 95% interval {low:+.4f} to {high:+.4f}"))
    part.judged &= judged
    if judged and low > LARGEST_SHIFT:
        part.find(f"{name}, held-out rows", f"take {new - old:.4f} bits per token more than in the model")


def shift(before: Readings, after: Readings) -> tuple[float, float]:
    """Paired 95 % interval of what a learnt token costs more after than before, in bits."""
    both = np.hstack([before.bits, after.bits])
    counts = np.random.default_rng(SEED).multinomial(len(both), np.full(len(both), 1 / len(both)), size=RESAMPLES)
    sums = counts @ both
    low, high = np.percentile(sums[:, 2] / sums[:, 3] - sums[:, 0] / sums[:, 1], [2.5, 97.5])
    return float(low), float(high)
