"""Strict overrides: `engine.overrides` is a tree of an engine's own keys, and every key of it is checked.

    strict = Strict({"train.train_iters": "set train.train_iters"}, task.origins)
    strict.require_known("train", "train_iter", ["train_iters", "seed"], "TrainingConfig")

error: super3.yaml:14: engine.overrides.train.train_iter: TrainingConfig has no field 'train_iter'
  did you mean 'train_iters'?

Each engine finds out in its own way which keys its library knows, and of which types; what is refused, and in which
words, is the same for all of them.

An override may name code, which a library imports and calls with arguments of the config. So it must be in a table
here, which needs no library, and where the library is installed, the name must lead to the object of that entry:

    loss_fn: {_target_: torch.nn.CrossEntropyLoss}          allowed
    loss_fn: {_target_: torch.distributed.run.os.system}    refused: begins like torch and is the shell
"""

import importlib
import re
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from nemotron_shared.config.overrides import TRUST
from nemotron_shared.config.validate import refusal
from nemotron_shared.system.errors import Finding, UserError, did_you_mean, problem

# The code that `engine.overrides` may name.


OPTIMIZERS = ("Adadelta", "Adagrad", "Adam", "Adamax", "AdamW", "ASGD", "NAdam", "RAdam", "RMSprop",
              "Rprop", "SGD")  # fmt: skip
LOSSES = ("BCEWithLogitsLoss", "CrossEntropyLoss", "HuberLoss", "KLDivLoss", "L1Loss", "MSELoss", "NLLLoss",
          "SmoothL1Loss")  # fmt: skip
COMPONENTS = "nemo_automodel.components"
OF_AUTOMODEL = (
    "loss.masked_ce.MaskedCrossEntropy",
    "loss.chunked_ce.ChunkedCrossEntropy",
    "loss.linear_ce.FusedLinearCrossEntropy",
    "loss.te_parallel_ce.TEParallelCrossEntropy",
    "loss.kd_loss.KDLoss",
    "datasets.utils.default_collater",
    "datasets.utils.packed_sequence_thd_collater",
    "models.common.utils.BackendConfig",
)


def _entries() -> Iterator[tuple[str, str]]:
    """Names, each with the module and qualified name that it must resolve to."""
    for name in OPTIMIZERS:
        home = f"torch.optim.{name.lower()}.{name}"
        yield from ((f"torch.optim.{name}", home), (home, home))
    for name in LOSSES:
        home = f"torch.nn.modules.loss.{name}"
        yield from ((f"torch.nn.{name}", home), (home, home))
    yield from ((f"{COMPONENTS}.{name}", f"{COMPONENTS}.{name}") for name in OF_AUTOMODEL)
    yield f"{COMPONENTS}.models.common.BackendConfig", f"{COMPONENTS}.models.common.utils.BackendConfig"


TARGETS = dict(_entries())


def is_listed(name: Any) -> bool:
    """Whether a name is in the table; nothing is imported."""
    return isinstance(name, str) and name in TARGETS


def is_allowed(name: Any) -> bool:
    """Whether a name is in the table and resolves to the object in the table."""
    if not is_listed(name):
        return False
    module, _, short = name.rpartition(".")
    try:
        found = getattr(importlib.import_module(module), short)
    except (ImportError, AttributeError):  # also if the package is not installed
        return False
    home, _, own = TARGETS[name].rpartition(".")
    about = (getattr(found, "__module__", None), getattr(found, "__qualname__", None))
    return callable(found) and about == (home, own) and getattr(sys.modules.get(home), own, None) is found


ROOT = "engine.overrides"
MOST_NAMES = 30  # most fields listed in a message
Tree = dict[str, Any]


def section(overrides: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """A section of an engine's own keys; empty if it does not exist."""
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
    """Whether a dotted key is set, even to null."""
    missing = object()
    return at(values, key, missing) is not missing


def unchecked(overrides: Mapping[str, Any], library: str) -> list[str]:
    """A note about keys that only the library can check."""
    if not overrides:
        return []
    return [f"{ROOT}: {library} checks these keys when the training starts; they are not checked yet"]


@dataclass(frozen=True)
class Strict:
    """Rules for refusing override keys.

    Attributes:
        owned: keys that our own sections decide, with the remedy: one value must not have two places.
        origins: "file:line" by dotted key of the whole configuration.
    """

    owned: Mapping[str, str]
    origins: Mapping[str, str]

    def refusal(self, key: str, message: str, remedy: str | None = None) -> UserError:
        """The error for a key; `key` comes without `engine.overrides`."""
        return refusal(f"{ROOT}.{key}", message, self.origins, remedy)

    def require_free(self, key: str) -> None:
        """Refuse a key that one of our own settings decides.

        Raises:
            UserError: the message names that setting.
        """
        if own := self.owned.get(key):
            raise self.refusal(key, "another setting decides this", own)

    def require_known(self, section: str, name: str, known: Collection[str], owner: str) -> None:
        """Refuse a name that a section of the library does not have.

        Raises:
            UserError: the remedy suggests the nearest name, or lists the known ones.
        """
        if name not in known:
            names = ", ".join(sorted(known)) if len(known) <= MOST_NAMES else f"{len(known)} others"
            remedy = did_you_mean(name, known, f"it has: {names}")
            raise self.refusal(f"{section}.{name}".lstrip("."), f"{owner} has no field '{name}'", remedy)

    def require_mapping(self, key: str, value: object, what: str = "this is a mapping") -> Mapping[str, Any]:
        """The keys of a section.

        Raises:
            UserError: a value in place of a section.
        """
        if not isinstance(value, Mapping):
            raise self.refusal(key, f"{what}, not {value!r}", "set its keys one by one")
        return value


def betas(value: Any) -> Tree:
    """Our settings for both of Adam's betas, which libraries take as a pair."""
    return dict(zip(("optimizer.adam_beta1", "optimizer.adam_beta2"), value, strict=True))


INSTRUCTION = re.compile(r"_[a-z]+_")
"""Keys that make a library call something: `_target_`, `_args_`, `_partial_`."""
FUNCTION = re.compile(r".+_fn")
IMPORTED = re.compile(r".+_(cls|plugin|module_path|executor_backend)|logits_processors|auto_map|middleware")
"""Keys whose value vLLM or transformers imports by name."""
OWN = re.compile(r"[a-z_]+|nemo_rl/[\w/]+\.py")
"""Harmless values of such keys: a word like `auto`, a file of the checkout."""


def named_code(tree: Any, above: str = "") -> Iterator[tuple[str, Any]]:
    """Keys at any depth that make a library import or call something, and `trust_remote_code`."""
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
) -> Iterator[Finding]:
    """Report code that `engine.overrides` would make a library import and call.

    Args:
        allow: the engine's setting that permits any code, if it has one.
        is_known: judges a name; `is_allowed` if the library is installed.
    """
    for key, value in named_code(overrides):
        name, remedy = key.rpartition(".")[2], f"set {allow}=true if you trust it" if allow else "leave it out"
        if name == TRUST:
            remedy = "leave it out; --trust-code on the command line lets a model's own code run"
            yield problem("this cannot be set in a file", remedy, f"{ROOT}.{key}")
        elif INSTRUCTION.fullmatch(name) and name != "_target_":
            yield problem("this would call arbitrary code", remedy, f"{ROOT}.{key}")
        elif not is_known(value):
            what = f"{value!r} would be called, but is not an allowed loss, optimizer or collator"
            yield problem(what, remedy, f"{ROOT}.{key}")


def leaves(
    tree: Tree, above: str = "", is_section: Callable[[str, Tree], bool] = lambda key, below: bool(below)
) -> Iterator[tuple[str, Any]]:
    """Dotted keys and values. A mapping that is not a section is a value; by default, an empty one is."""
    for name, value in tree.items():
        key = f"{above}{name}"
        if isinstance(value, dict) and is_section(key, value):
            yield from leaves(value, f"{key}.", is_section)
        else:
            yield key, value


def merge(base: Tree, over: Tree) -> Tree:
    """Merge `over` into `base`, mapping by mapping."""
    both = {
        name: merge(base[name], value) if isinstance(value, dict) and isinstance(base.get(name), dict) else value
        for name, value in over.items()
    }
    return base | both
