"""Strict overrides: `engine.overrides` is a tree in the words of an engine's library, and every key of it is checked.

    strict = Strict({"train.train_iters": "set train.train_iters"}, task.origins)
    strict.require_known("train", "train_iter", ["train_iters", "seed"], "TrainingConfig")

error: super3.yaml:14: engine.overrides.train.train_iter: TrainingConfig has no field 'train_iter'
  did you mean 'train_iters'?

What the library knows, and of which type it is, each engine finds out in its own way; what is refused, and in which
words, is the same for all of them.
"""

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from nemotron_engines.targets import is_listed
from nemotron_shared.config.overrides import TRUST
from nemotron_shared.config.validate import refusal
from nemotron_shared.errors import UserError, did_you_mean
from nemotron_shared.runtime.needs import Problem

ROOT = "engine.overrides"
MOST_NAMES = 30  # fields that a message lists
Tree = dict[str, Any]


def section(overrides: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """A section of an engine's own keys, empty where it has none."""
    value = overrides.get(name)
    return value if isinstance(value, Mapping) else {}


def at(values: Any, key: str, otherwise: Any = None) -> Any:
    """The value at a dotted key."""
    for name in key.split("."):
        if not isinstance(values, dict) or name not in values:
            return otherwise
        values = values[name]
    return values


def has(values: dict[str, Any], key: str) -> bool:
    """Whether a dotted key is set, to null as well."""
    missing = object()
    return at(values, key, missing) is not missing


def unchecked(overrides: Mapping[str, Any], library: str) -> list[str]:
    """A note about keys that only the library knows, and which no table of ours repeats."""
    if not overrides:
        return []
    return [f"{ROOT}: {library} checks these keys when the training starts; they were not checked yet"]


@dataclass(frozen=True)
class Strict:
    """What is refused.

    Attributes:
        owned: keys that our own sections decide, and what to do instead. Two places for one value would contradict
            each other.
        origins: "file:line" by dotted key of the whole configuration.
    """

    owned: Mapping[str, str]
    origins: Mapping[str, str]

    def refusal(self, key: str, message: str, remedy: str | None = None) -> UserError:
        """The error for a key, which is given without `engine.overrides`."""
        return refusal(f"{ROOT}.{key}", message, self.origins, remedy)

    def require_free(self, key: str) -> None:
        """Refuse a key that one of our own settings decides.

        Raises:
            UserError: naming that setting.
        """
        if own := self.owned.get(key):
            raise self.refusal(key, "one of our own settings decides this", own)

    def require_known(self, section: str, name: str, known: Collection[str], owner: str) -> None:
        """Refuse a name that a section of the library does not have.

        Raises:
            UserError: with the nearest name, or those that there are.
        """
        if name not in known:
            names = ", ".join(sorted(known)) if len(known) <= MOST_NAMES else f"{len(known)} others"
            remedy = did_you_mean(name, known, f"it has: {names}")
            raise self.refusal(f"{section}.{name}".lstrip("."), f"{owner} has no field '{name}'", remedy)

    def require_mapping(self, key: str, value: object, what: str = "this is a mapping") -> Mapping[str, Any]:
        """The keys of a section.

        Raises:
            UserError: a value stands where a section should.
        """
        if not isinstance(value, Mapping):
            raise self.refusal(key, f"{what}, not {value!r}", "give its keys one by one")
        return value


def betas(value: Any) -> Tree:
    """Our settings for both of Adam's betas, which libraries give as a pair."""
    return dict(zip(("optimizer.adam_beta1", "optimizer.adam_beta2"), value, strict=True))


INSTRUCTION = re.compile(r"_[a-z]+_")
"""Keys that tell a library how to call something: `_target_`, `_args_`, `_partial_`."""
FUNCTION = re.compile(r".+_fn")
IMPORTED = re.compile(r".+_(cls|plugin|module_path|executor_backend)|logits_processors|auto_map|middleware")
"""Keys whose value vLLM or transformers imports by its name."""
OWN = re.compile(r"[a-z_]+|nemo_rl/[\w/]+\.py")
"""Of such values, those of the libraries: a word like `auto`, a file of the checkout."""


def named_code(tree: Any, above: str = "") -> Iterator[tuple[str, Any]]:
    """What would have a library import or call something, and `trust_remote_code`; at any depth."""
    if isinstance(tree, list | tuple):
        for number, child in enumerate(tree):
            yield from named_code(child, f"{above}[{number}]")
    for name, value in tree.items() if isinstance(tree, dict) else ():
        key = f"{above}.{name}" if above else str(name)
        if INSTRUCTION.fullmatch(str(name)) or name == TRUST or _is_imported(str(name), value):
            yield key, value
        yield from named_code(value, key)


def _is_imported(name: str, value: Any) -> bool:
    if FUNCTION.fullmatch(name):
        return not isinstance(value, dict) and value is not None
    return bool(IMPORTED.fullmatch(name) and value) and not (isinstance(value, str) and OWN.fullmatch(value))


def foreign_code(
    overrides: Tree, allow: str | None = None, is_known: Callable[[Any], bool] = is_listed
) -> Iterator[Problem]:
    """What `engine.overrides` would have a library import and call.

    Args:
        allow: the setting that lets any code be named, where the engine has one.
        is_known: judges a name; `is_allowed` where the library is installed.
    """
    for key, value in named_code(overrides):
        name, remedy = key.rpartition(".")[2], f"set {allow}=true if you trust it" if allow else "leave it out"
        if name == TRUST:
            remedy = "leave it out; --trust-code on the command line lets a model's own code run"
            yield Problem("no file can give this", remedy, f"{ROOT}.{key}")
        elif INSTRUCTION.fullmatch(name) and name != "_target_":
            yield Problem("this says how to call something", remedy, f"{ROOT}.{key}")
        elif not is_known(value):
            what = f"{value!r} is none of the losses, optimizers and collators that may be named, and would be called"
            yield Problem(what, remedy, f"{ROOT}.{key}")


def leaves(
    tree: Tree, above: str = "", is_section: Callable[[str, Tree], bool] = lambda key, below: bool(below)
) -> Iterator[tuple[str, Any]]:
    """Dotted keys and values. A mapping is a value where it is no section, which an empty one is not by default."""
    for name, value in tree.items():
        key = f"{above}{name}"
        if isinstance(value, dict) and is_section(key, value):
            yield from leaves(value, f"{key}.", is_section)
        else:
            yield key, value


def merge(base: Tree, over: Tree) -> Tree:
    """`over` laid over `base`, mapping by mapping."""
    both = {
        name: merge(base[name], value) if isinstance(value, dict) and isinstance(base.get(name), dict) else value
        for name, value in over.items()
    }
    return base | both
