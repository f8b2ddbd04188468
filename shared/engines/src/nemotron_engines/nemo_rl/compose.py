"""The one config file that NeMo-RL is started with: its base, our sections over it, the overrides on top.

    built = build(config, "grpo", places, base_values)
    built["policy"]["train_global_batch_size"]      # 2048

Interpolations of the base are resolved last, so that a value of ours reaches everything that NeMo-RL derives from it.
"""

import operator
import os
import re
from collections.abc import Callable
from typing import Any

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from nemotron_engines.nemo_rl.checks import shared_out
from nemotron_engines.nemo_rl.settings import NeMoRLEngine, NeMoRLGRPOEngine
from nemotron_engines.nemo_rl.table import at, has
from nemotron_engines.nemo_rl.translate import REFINABLE, VERIFIER, Flat, Places, grpo_keys, sft_keys
from nemotron_engines.overrides import Strict, leaves
from nemotron_shared.config.references import computing_with, plain
from nemotron_shared.config.training import GRPOConfig, SupervisedConfig, TrainingConfig
from nemotron_shared.errors import UserError

LARGEST = 1e18


def _of_numbers(compute: Callable[[float, float], float]) -> Callable[[Any, Any], float]:
    """For numbers only, and results that are sizes: a text times a number is as long as somebody likes."""

    def checked(a: Any, b: Any) -> float:
        if type(a) not in (int, float) or type(b) not in (int, float):
            raise ValueError(f"computes with numbers, not with {str(a)[:40]!r} and {str(b)[:40]!r}")
        if max(abs(a), abs(b), abs(found := compute(a, b))) > LARGEST:
            raise ValueError("computes a number beyond all sizes")
        return found

    return checked


RESOLVERS = {"mul": _of_numbers(operator.mul), "div": _of_numbers(operator.truediv), "max": _of_numbers(max)}
"""What NeMo-RL's configs compute with."""
MEGATRON = "policy.megatron_cfg.enabled"


def build(
    config: TrainingConfig[NeMoRLEngine],
    algorithm: str,
    places: Places,
    base: dict[str, Any],
    *,
    complete: bool = True,
) -> dict[str, Any]:
    """The whole configuration, resolved.

    Args:
        complete: environment variables that the base reads must be set; if not, a missing one stands as `<NAME>`.

    Raises:
        UserError: an override repeats a key of our sections, or a variable is missing.
    """
    engine, overrides = config.engine, config.engine.overrides
    # Megatron trains, otherwise DTensor does
    megatron = bool(at(overrides, MEGATRON, at(base, MEGATRON)))
    tree = OmegaConf.create(with_variables(base, complete=complete))
    before = resolved(OmegaConf.merge(tree, overrides))
    copies = shared_out(before, engine.num_nodes, engine.gpus_per_node).copies
    if isinstance(config, GRPOConfig) and algorithm == "grpo":
        ours = grpo_keys(config, places, copies, megatron=megatron)
    else:
        assert isinstance(config, SupervisedConfig) and algorithm == "sft", f"no stage trains {algorithm} like this"
        ours = sft_keys(config, places, copies, megatron=megatron)
    refuse_repeated(overrides, ours)
    refined = {key: value for key, value in ours.items() if not (key in REFINABLE and has(overrides, key))}
    for key, value in refined.items():
        OmegaConf.update(tree, key, value, merge=isinstance(value, dict) and key == "data.default", force_add=True)
    if isinstance(engine, NeMoRLGRPOEngine) and engine.environment == "math":
        tree = OmegaConf.merge(tree, {"env": {"math": {"math_verify_impl": VERIFIER}}})
    return resolved(OmegaConf.merge(tree, overrides))


def resolved(tree: Any) -> dict[str, Any]:
    """Plain values; raises UserError for an interpolation that leads nowhere."""
    try:
        with computing_with(RESOLVERS):
            content = plain(tree)
    except OmegaConfBaseException as error:
        raise UserError(f"NeMo-RL's config: {error.full_key}: {str(error).splitlines()[0]}") from error
    assert isinstance(content, dict)
    return {str(name): value for name, value in content.items()}


def with_variables(base: Any, *, complete: bool) -> Any:
    """The base with the environment variables it reads put in."""

    def value_of(found: re.Match[str]) -> str:
        name = found[1]
        if name not in os.environ and complete:
            remedy = f"export {name}=... (a folder that all nodes see)"
            raise UserError(f"this recipe needs the environment variable {name}", remedy)
        return os.environ.get(name, f"<{name}>")

    if isinstance(base, dict):
        return {name: with_variables(child, complete=complete) for name, child in base.items()}
    if isinstance(base, list):
        return [with_variables(child, complete=complete) for child in base]
    return re.sub(r"\$\{oc\.env:(\w+)\}", value_of, base) if isinstance(base, str) else base


def refuse_repeated(overrides: dict[str, Any], ours: Flat) -> None:
    """An override of what a section of ours decides would make two places for one value."""
    there = "set it there: run, train, grpo, optimizer, scheduler, checkpoint, logger or engine"
    for key, _ in leaves(overrides):
        decided = [own for own in ours if key == own or key.startswith(f"{own}.") or own.startswith(f"{key}.")]
        if not REFINABLE.issuperset(decided):
            Strict({key: there}, {}).require_free(key)
