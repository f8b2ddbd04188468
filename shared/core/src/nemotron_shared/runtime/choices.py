"""Settings that were chosen for somebody, each with its reason, and the config file that keeps them.

    write_choices(file, "local", [Choice("data_prep.pack_size", 256, "the longest conversation has 212 tokens")])

A file that was written once is used again by the next run, so that it makes the same result on another machine.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from nemotron_shared.atomic import write_text


@dataclass(frozen=True)
class Choice:
    """A dotted key, its value, and why it is this one."""

    key: str
    value: Any
    why: str

    def __str__(self) -> str:
        return f"{self.key}={json.dumps(self.value)}  ({self.why})"


def write_choices(file: Path, base: str, choices: Iterable[Choice], given: Mapping[str, Any]) -> None:
    """A config over `base` with the chosen settings, and their reasons in its head.

    Args:
        given: settings that nobody had to choose, by dotted key.
    """
    chosen = list(choices)
    values: dict[str, Any] = {}
    for key, value in [*given.items(), *((choice.key, choice.value) for choice in chosen)]:
        *sections, name = key.split(".")
        section = values
        for part in sections:
            section = section.setdefault(part, {})
        section[name] = value
    reasons = "".join(f"#   {choice}\n" for choice in chosen)
    body = yaml.safe_dump({"defaults": [base, "_self_"], **values}, sort_keys=False, allow_unicode=True)
    write_text(
        file, f"# Chosen once, and used by every later run. Change a value here, or delete the file.\n{reasons}{body}"
    )
