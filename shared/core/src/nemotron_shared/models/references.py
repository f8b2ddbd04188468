"""References to models from outside, and the artifacts they become.

    hf://org/name  hf://org/name@v2      the hub; a branch, a tag or a commit     hf-org--name
    megatron:/checkpoints/iter_0002000   a Megatron checkpoint                    megatron-iter_0002000

Names and paths are handled in `artifacts.names`. `spelled_out` expands the shorter forms used in guides.
"""

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path

from nemotron_shared.artifacts import Store
from nemotron_shared.artifacts.artifact import is_folder
from nemotron_shared.artifacts.names import SHORT_NAMES, is_path, parse_reference
from nemotron_shared.families import families
from nemotron_shared.system.errors import UserError

MAIN = "main"
HUB = re.compile(r"hf://(?:models/)?([\w.-]+/[\w.-]+)(?:@([^\s@]+))?", re.ASCII)
BARE = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+(?:@\S+)?")
LONGEST_NAME = 100
TOKENIZER = "-tokenizer"
OUTSIDE = re.compile(r"^(external|hf|megatron)-")


@dataclass(frozen=True)
class HubModel:
    """A repository on the hub and the requested revision."""

    repository: str
    revision: str = MAIN

    def __str__(self) -> str:
        return f"hf://{self.repository}" + (f"@{self.revision}" if self.revision != MAIN else "")

    def name(self, suffix: str = "") -> str:
        """The artifact's name."""
        return artifact_name(f"hf-{self.repository.replace('/', '--')}{suffix}")


@dataclass(frozen=True)
class MegatronModel:
    """A folder saved by Megatron."""

    path: Path

    def __str__(self) -> str:
        return f"megatron:{self.path}"

    @property
    def name(self) -> str:
        """The artifact's name."""
        return artifact_name(f"megatron-{self.path.absolute().name}")


def parse_outside(text: str) -> HubModel | MegatronModel | None:
    """Parse a reference to something outside the store; None for a name or a path.

    Raises:
        UserError: it has the scheme and is malformed.
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


def spelled_out(text: str, store: Store, family: str, *, hub: bool = True) -> tuple[str, str | None]:
    """Expand a reference from the shorter forms used in guides, with a line saying what it was taken for.

        models/nano   ./models/nano, if that folder exists; so does `model`, if it holds a model and no artifact has it
        org/name      hf://org/name, if there is neither a folder nor an artifact of that name, nor a folder `org`

    Args:
        hub: whether it may name a model on the hub.
    """
    if is_path(text) or "://" in text or parse_outside(text) is not None:
        return text, None
    owner, slash, _ = text.partition("/")
    if not slash:
        is_model = is_folder(text) and (Path(text) / "config.json").is_file()
        return (f"./{text}", None) if is_model and not _may_be_artifact(text, store, family) else (text, None)
    if is_folder(text):
        return f"./{text}", None
    address = f"hf://{text}"
    if not hub or not BARE.fullmatch(text) or ".." in text or is_folder(owner) or _may_be_artifact(text, store, family):
        return text, None
    return address, f"{text}: no folder or artifact here has that name: taken as {address}, a model on the hub"


def _may_be_artifact(text: str, store: Store, family: str) -> bool:
    """Whether a name is one that stages use, or exists in the store."""
    words = text.partition(":")[0].split("/")
    if words[0] in (*families(), family) or "-".join(words) in SHORT_NAMES:
        return True
    try:
        return bool(store.versions(parse_reference(text, family).name))
    except UserError:
        return False


def name_from_outside(name: str) -> str:
    """The name that people know a model by: `qwen3-8b` for `hf-qwen--qwen3-8b`, `my-model` for `external-my-model`."""
    known = OUTSIDE.sub("", name)
    return (known.rpartition("--")[2] if name.startswith("hf-") else known).strip("._-") or "model"


def artifact_name(text: str) -> str:
    """A valid artifact name derived from a text, always the same for the same text."""
    name = re.sub(r"[^a-z0-9._-]", "-", text.lower())
    if len(name) <= LONGEST_NAME:
        return name
    return f"{name[: LONGEST_NAME - 9]}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"
