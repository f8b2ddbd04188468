"""Identity of a piece of work: what it is, how it is done, and with which code. The three change for different reasons.

    identity.what       identifies the result: settings, inputs, raw sources. Another value is another result.
    identity.how        may differ between attempts at one result: micro batch, checkpoint interval, processes.
    identity.modules    the code the step really loads, a digest for each module.

A run's folder is named by `what` alone, so an unfinished run continues after a change of the other two. A finished
result is reused only if `what` and code are the same.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from nemotron_shared.config.schema import Section
from nemotron_shared.digest import json_digest
from nemotron_shared.file_cache import FileCache
from nemotron_shared.runtime.code import PRESENTATION, modules_of

PACKAGES = ("nemotron_shared", "nemotron_data", "nemotron_engines")
LENGTH = "train.train_iters"
"""Number of training steps. Part of `what`, but a finished training can be extended to more."""
CONTENT = "content of "
"""Prefix of a setting's key, for the digest of the content it refers to."""
DIGEST = re.compile(r"\b[0-9a-f]{64}\b")


@dataclass(frozen=True)
class Identity:
    """Flat values by dotted key, and digests by module."""

    what: dict[str, Any]
    how: dict[str, Any]
    modules: dict[str, str]

    @property
    def result(self) -> str:
        """Result id, ignoring code."""
        return json_digest(self.what)

    @property
    def code(self) -> str:
        """One digest over all modules."""
        return json_digest(self.modules)

    @property
    def fingerprint(self) -> str:
        """Id of the result together with its code."""
        return json_digest({"what": self.result, "code": self.code})

    @property
    def series(self) -> str:
        """Id of results that differ only in the number of training steps."""
        return json_digest({key: value for key, value in self.what.items() if key != LENGTH})


def what_and_how(values: Mapping[str, Any], section: Section) -> tuple[dict[str, Any], dict[str, Any]]:
    """Split one section's values into `what` and `how`, by its schema."""
    what: dict[str, Any] = {}
    how: dict[str, Any] = {}
    for name, value in values.items():
        inner = getattr(section, name)
        if name in section.extra_keys() and not inner:
            continue
        if name in section.how_keys():
            how[name] = value
        elif isinstance(inner, Section) and isinstance(value, dict):
            what[name], how[name] = what_and_how(value, inner)
        else:
            what[name] = value
    return what, how


def flat(values: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted keys and values; an empty mapping yields none."""
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from flat(value, f"{above}{name}.")
        else:
            yield f"{above}{name}", value


def modules_loaded(entries: Sequence[str], without: str | None, directory: Path, cache_file: Path) -> dict[str, str]:
    """Digests of the modules a step loads.

    Args:
        entries: the step's module, and the chosen engine's.
        without: a module not to follow: the step that prepares the data, whose result counts by its content.
        directory: the stage's folder.
    """
    stage = ".".join(entries[0].split(".")[:2])
    roots = {stage: directory}
    outside = (entry.split(".")[0] for entry in entries[1:] if not entry.startswith(f"{stage}."))
    for package in {*PACKAGES, *outside}:  # `outside`: the package of an engine outside this repository
        if (spec := find_spec(package)) and spec.origin:
            roots[package] = Path(spec.origin).parent
    cache = FileCache(cache_file)
    found = modules_of(entries, roots, cache, PRESENTATION | ({without} if without else set()))
    cache.save()
    return found


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """`train.micro_batch_size 8 -> 4` for each key whose value differs.

    Digests are shortened; the content of a setting is left out if the setting itself differs.
    """
    unlike = [key for key in sorted(before.keys() | now.keys()) if before.get(key) != now.get(key)]
    found = []
    for key in unlike:
        is_of_another = key.startswith(CONTENT) and key.removeprefix(CONTENT) in unlike
        if not is_of_another:
            old, new = (_short(values.get(key, "(none)")) for values in (before, now))
            found.append(f"{key} {old} -> {new}")
    return found


def _short(value: Any) -> str:
    text = DIGEST.sub(lambda found: found[0][:12], str(value))
    return text if len(text) <= 40 else f"{text[:37]}..."
