"""Overrides of settings, from the command line or from another program, and the dotted keys that they name.

readable("run.model=~/models/mine")        # "run.model='~/models/mine'"
readable("data_prep.source=[~/a,~/b]")     # "data_prep.source=['~/a','~/b']"
readable("optimizer.lr=1e-3")              # unchanged

Hydra's grammar reserves some characters that occur in paths, so values that it cannot read are quoted.
"""

import re
import shlex
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, takewhile
from pathlib import Path
from typing import Any

from nemotron_shared.system.errors import UserError

COMMAND_LINE = "command line"
PLAIN = re.compile(r"[/.]*[A-Za-z][\w./:@-]*", re.ASCII)
OTHER_VALUES = ("null", "true", "false", "nan", "inf")
BEGINNING = re.compile(r"[~+]*[A-Za-z_][\w.@/-]*=")
"""Of an override: its key."""
IN_QUOTES = re.compile(r"""(['"])(?:\\.|(?!\1)[^\\])*(?:\1|\Z)""", re.DOTALL)


class Said(str):
    """An override that did not come from the command line, but from a machine's profile, say."""

    origin: str

    def __new__(cls, text: str, origin: str) -> "Said":
        """Build it; `origin` names its source in messages."""
        said = super().__new__(cls, text)
        said.origin = origin
        return said

    def __reduce__(self) -> tuple[type["Said"], tuple[str, str]]:
        """How to pickle it: rank 0 sends the words of a start to the other ranks."""
        return Said, (str(self), self.origin)


def override(key: str, value: Any) -> str:
    """`key=value`, `key=[one,'and two']` or `key={dim:16,layers:null}`, quoted for Hydra's grammar where necessary."""
    return f"{key}={_written(value)}"


def _written(value: Any) -> str:
    if isinstance(value, Mapping):
        return f"{{{','.join(f'{key}:{_written(one)}' for key, one in value.items())}}}"
    if isinstance(value, list | tuple):
        return f"[{','.join(map(_written, value))}]"
    if value is None or isinstance(value, bool | int | float):
        return "null" if value is None else str(value).lower()
    return quoted(str(value))  # a date of TOML or YAML, say


def override_key(override: str) -> str:
    """The dotted key of an override, without its `+`, `++` or `~`."""
    return override.partition("=")[0].lstrip("+~").strip()


def require_key(override: str) -> None:
    """Refuse an override without a key: `=5`.

    Raises:
        UserError: with the override.
    """
    if not override_key(override):
        raise UserError(f"{who_says(override, None)}: '{override}' names no setting", "write key=value")


def require_unsplit(words: Sequence[str]) -> None:
    """Refuse an override that the shell took apart at its spaces, as `rewards=[{path:` and `mine.py:right}]`.

    A bracket is one of the grammar only where the value begins with one, and outside of quotes; an override ends at
    the latest where the next begins.

    Raises:
        UserError: with the override in quotes.
    """
    for at, word in enumerate(words):
        rest = takewhile(lambda other: not BEGINNING.match(other), words[at + 1 :])
        for whole in accumulate(rest, "{} {}".format, initial=word) if _open(word) else ():
            if not _open(whole):
                what = f"{COMMAND_LINE}: '{word}' and '{words[at + 1]}' are two words to the shell"
                raise UserError(what, f"put it in quotes: {shlex.quote(whole)}")


def _open(text: str) -> bool:
    """Whether a text is an override whose value is a list or a mapping that does not end."""
    begun = BEGINNING.match(text)
    value = text[begun.end() :] if begun else ""
    outside = IN_QUOTES.sub("", value) if value.startswith(("[", "{")) else ""
    return sum(map(outside.count, "[{")) > sum(map(outside.count, "]}"))


def require_once(overrides: Iterable[str]) -> None:
    """Refuse two values for one key on a command line, of which one would be lost.

    The same value may come twice. A profile's settings are there to be changed, as a key that `~` removes may be added.

    Raises:
        UserError: with both values.
    """
    said: dict[str, str] = {}
    for text in overrides:
        key, value = override_key(text), text.partition("=")[2].strip()
        if isinstance(text, Said) or text.startswith("~"):
            continue
        if said.setdefault(key, value) != value:
            raise UserError(f"{COMMAND_LINE}: {key} is given twice, as {said[key]} and {value}", "give it once")


def who_says(override: str, theirs: str | None) -> str:
    """The origin of an override.

    Args:
        theirs: another library's key that it was translated from.
    """
    who = override.origin if isinstance(override, Said) else COMMAND_LINE
    return f"{who} ({theirs})" if theirs else who


def is_group(override: str, folders: Sequence[Path]) -> bool:
    """Whether an override chooses a file of a group, such as `engine=transformers`."""
    return any((folder / override_key(override)).is_dir() for folder in folders)


def quoted(text: str) -> str:
    """Quote a text unless it can only be read as itself; backslashes are literal unless a quote follows."""
    if PLAIN.fullmatch(text) and text.lower() not in OTHER_VALUES:
        return text
    return "'" + re.sub(r"(\\*)('|$)", lambda end: end[1] * 2 + end[2].replace("'", "\\'"), text) + "'"


ANYWAY = re.compile(r"[\w./:@%+-]*", re.ASCII)
"""Values the grammar always accepts, so we need not try."""
LIST = re.compile(r"\[([^][{}()'\"]*)\]")
OF_THE_GRAMMAR = ("[", "{", "'", '"')
"""Prefixes of values written in the grammar: their errors are reported, not quoted away."""


def readable(override: str) -> str:
    """The same override, quoting its value if the grammar cannot parse it or would read several values."""
    left, equals, value = override.partition("=")
    if not equals or ANYWAY.fullmatch(value) or _is_read(override):
        return override
    if several := LIST.fullmatch(value.strip()):
        parts = (part.strip() for part in several[1].split(","))
        value = f"[{','.join(part if _is_read(f'{left}={part}') else quoted(part) for part in parts)}]"
    elif value.startswith(OF_THE_GRAMMAR):
        return override
    else:
        value = quoted(value)
    text = f"{left}={value}"
    return Said(text, override.origin) if isinstance(override, Said) else text


def _is_read(override: str) -> bool:
    """Whether the grammar reads a single value in it."""
    from hydra.core.override_parser.overrides_parser import OverridesParser  # here: help does without
    from hydra.errors import HydraException

    try:
        return not OverridesParser.create().parse_override(override).is_sweep_override()
    except (HydraException, RecursionError):
        return False


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


def is_at(key: str, known: Collection[str]) -> bool:
    """Whether a key is one of the config's, one of its sections, or inside a section that is free-form or empty."""
    return any(key == one or key.startswith(f"{one}.") or one.startswith(f"{key}.") for one in known)


def of_the_same_name(key: str, known: Iterable[str]) -> list[str]:
    """Keys whose last part equals or means that of `key`: `optimizer.lr` for `train.lr` and `learning_rate`.

    Those of its own section come first.
    """
    section, _, last = key.rpartition(".")
    alike = [last, *OTHER_WORDS.get(last, [])]
    found = [one for one in known if one.rpartition(".")[2] in alike]
    return sorted(found, key=lambda one: one.rpartition(".")[0] != section)


def leaves(node: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted keys and values of a tree; a list or an empty mapping counts as one value."""
    if isinstance(node, dict) and node:
        for name, child in node.items():
            yield from leaves(child, f"{key}.{name}" if key else str(name))
    else:
        yield key, node


def flat(values: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Dotted keys and values of a tree; an empty mapping counts as none."""
    return ((key, value) for key, value in leaves(dict(values)) if not isinstance(value, dict))


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
