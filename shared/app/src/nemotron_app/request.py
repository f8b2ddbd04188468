"""What a line of the `nemotron` command asks for. Every command that runs steps takes a `Request`."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:  # composing configs is slow to import, and `nemotron --help` needs none
    from nemotron_shared.config.compose import Composed

Mode = Literal["run", "batch", "stage"]


@dataclass(frozen=True)
class Remote:
    """Arguments of --run, --batch or --stage."""

    mode: Mode
    profile: str


@dataclass(frozen=True)
class Request:
    """A parsed command line."""

    family: str
    command: tuple[str, ...]
    config: str | None
    overrides: tuple[str, ...]
    dry_run: bool
    json: bool
    machine: Path | None = None
    trust_code: bool = False
    remote: Remote | None = None
    composed: dict[tuple[str, str, tuple[str, ...]], "Composed"] = field(default_factory=dict, compare=False)
    """Cache of `launch.composed`."""
