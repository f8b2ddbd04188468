"""What a line of the `nemotron` command asks for. Every command that runs steps takes a `Request`."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from nemotron_shared.config.overrides import override_key

if TYPE_CHECKING:  # composing configs is slow to import, and `nemotron --help` needs none
    from nemotron_shared.config.compose import Composed

MACHINE = "run.env."
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

    @property
    def machine_settings(self) -> dict[str, str]:
        """Overrides of `run.env`, by key of env.toml: they are about the machines of a job."""
        keys = {override_key(text): text for text in self.overrides}
        return {key.removeprefix(MACHINE): text for key, text in keys.items() if key.startswith(MACHINE)}

    def without_machine(self) -> "Request":
        """The request with only the overrides that are settings of a step."""
        machine = self.machine_settings.values()
        return replace(self, overrides=tuple(text for text in self.overrides if text not in machine))
