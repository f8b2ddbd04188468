"""Settings chosen on the user's behalf, each with its reason, and the config file that keeps them.

    write_choices(file, "local", [Choice("data_prep.pack_size", 256, "the longest conversation has 212 tokens")])

Later runs use the same file again, so it gives the same result on another machine.
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
    """A dotted key, its value, and the reason for it."""

    key: str
    value: Any
    why: str

    def __str__(self) -> str:
        return f"{self.key}={json.dumps(self.value)}  ({self.why})"


def write_choices(file: Path, base: str, choices: Iterable[Choice], given: Mapping[str, Any]) -> None:
    """Write a config over `base` with the chosen settings, and their reasons in a comment at the top.

    Args:
        given: settings that did not have to be chosen, by dotted key.
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
