"""Dotted keys of a tree of values."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from omegaconf import DictConfig, OmegaConf

TRUST = "trust_remote_code"
OTHER_WORDS = {
    "learning_rate": ["lr"],
    "max_steps": ["train_iters"],
    "train_steps": ["train_iters"],
    "batch_size": ["global_batch_size"],
    "train_batch_size": ["global_batch_size"],
    "per_device_train_batch_size": ["micro_batch_size"],
    "max_length": ["seq_length", "pack_size"],
    "max_seq_length": ["seq_length", "pack_size"],
    "sequence_length": ["seq_length", "pack_size"],
    "warmup_steps": ["lr_warmup_iters"],
    "lr_scheduler_type": ["lr_decay_style"],
    "max_grad_norm": ["clip_grad"],
    "save_steps": ["save_interval"],
    "save_total_limit": ["most_recent_k"],
    "eval_steps": ["eval_interval"],
    "logging_steps": ["log_interval"],
    "num_generations": ["num_generations_per_prompt"],
    "max_completion_length": ["max_new_tokens"],
    "kl_coef": ["reference_policy_kl_penalty"],
    "beta": ["reference_policy_kl_penalty"],
    "lora_r": ["dim"],
    "lora_rank": ["dim"],
    "lora_alpha": ["alpha"],
}
"""Names of settings in other trainers, and the last part of our key for each."""


def leaf_keys(tree: DictConfig) -> Iterator[str]:
    """Dotted keys of all values; see `leaves`."""
    return (key for key, _ in leaves(OmegaConf.to_container(tree, resolve=False)))


def is_at(key: str, known: Collection[str]) -> bool:
    """Whether a key is one of the config's, one of its sections, or inside a section that is free-form or empty."""
    return any(key == one or key.startswith(f"{one}.") or one.startswith(f"{key}.") for one in known)


def of_the_same_name(key: str, known: Iterable[str]) -> list[str]:
    """Keys whose last part equals or means that of `key`: `optimizer.lr` for `train.lr` and `learning_rate`."""
    last = key.rpartition(".")[2]
    alike = [last, *OTHER_WORDS.get(last, [])]
    return [one for one in known if one.rpartition(".")[2] in alike]


def leaves(node: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted keys and values of a tree; a list or an empty mapping counts as one value."""
    if isinstance(node, dict) and node:
        for name, child in node.items():
            yield from leaves(child, f"{key}.{name}" if key else str(name))
    else:
        yield key, node


def nested(values: Mapping[str, Any]) -> dict[str, Any]:
    """A tree from dotted keys and their values: {"a.b": 1} gives {"a": {"b": 1}}."""
    tree: dict[str, Any] = {}
    for key, value in values.items():
        *above, name = key.split(".")
        place = tree
        for part in above:
            place = place.setdefault(part, {})
        place[name] = value
    return tree


def keys_of_trust(node: Any, above: str = "") -> Iterator[str]:
    """Every place where `trust_remote_code` occurs, including in lists."""
    for number, child in enumerate(node) if isinstance(node, list) else ():
        yield from keys_of_trust(child, f"{above}[{number}]")
    for name, child in node.items() if isinstance(node, dict) else ():
        key = f"{above}.{name}" if above else str(name)
        if name == TRUST:
            yield key
        else:
            yield from keys_of_trust(child, key)
