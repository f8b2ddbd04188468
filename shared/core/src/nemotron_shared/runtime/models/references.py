"""How a model from outside is written, and the artifact that it becomes.

    hf://org/name  hf://org/name@v2      the hub; a branch, a tag or a commit     hf-org--name
    megatron:/checkpoints/iter_0002000   a checkpoint of Megatron                 megatron-iter_0002000

A name or a path is neither: see `artifacts.names`.
"""

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path

from nemotron_shared.errors import UserError

MAIN = "main"
HUB = re.compile(r"hf://(?:models/)?([\w.-]+/[\w.-]+)(?:@([^\s@]+))?", re.ASCII)
BARE = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+(?:@\S+)?")
LONGEST_NAME = 100
TOKENIZER = "-tokenizer"


@dataclass(frozen=True)
class HubModel:
    """A repository of the hub and the revision that was asked for."""

    repository: str
    revision: str = MAIN

    def __str__(self) -> str:
        return f"hf://{self.repository}" + (f"@{self.revision}" if self.revision != MAIN else "")

    def name(self, suffix: str = "") -> str:
        """The artifact's name."""
        return artifact_name(f"hf-{self.repository.replace('/', '--')}{suffix}")


@dataclass(frozen=True)
class MegatronModel:
    """A folder that Megatron saved."""

    path: Path

    def __str__(self) -> str:
        return f"megatron:{self.path}"

    @property
    def name(self) -> str:
        """The artifact's name."""
        return artifact_name(f"megatron-{self.path.absolute().name}")


def parse_outside(text: str) -> HubModel | MegatronModel | None:
    """What a reference means outside of the store; None where it is a name or a path.

    Raises:
        UserError: it begins like one and is none.
    """
    if text.startswith("hf:/"):
        found = HUB.fullmatch(text)
        if (
            found
            and text.isprintable()
            and not any(".." in part or part == "." for part in (*found[1].split("/"), found[2] or ""))
        ):
            return HubModel(found[1], found[2] or MAIN)
        meant = f"hf://{text[3:].strip('/')}"
        here = meant if HUB.fullmatch(meant) and ".." not in meant else "hf://organisation/name, or .../name@revision"
        raise UserError(f"{text}: not a model's address", f"write {here}")
    scheme, colon, path = text.partition(":")
    if scheme == "megatron" and colon and re.search(r"[./~]", path):  # megatron:v2 is an artifact of that name
        if "\0" in path:
            raise UserError(f"{text!r}: not the path of a file", "write megatron:/path/of/the/checkpoint")
        return MegatronModel(Path(path).expanduser())
    return None


def artifact_name(text: str) -> str:
    """A name that the store can hold, and the same for the same text."""
    name = re.sub(r"[^a-z0-9._-]", "-", text.lower())
    if len(name) <= LONGEST_NAME:
        return name
    return f"{name[: LONGEST_NAME - 9]}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"
