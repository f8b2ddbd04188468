"""What a step's work is given, and what it returns."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic

from typing_extensions import TypeVar

from nemotron_shared.artifacts import Artifact, Store
from nemotron_shared.config.schema import StageConfig
from nemotron_shared.runtime.run import Run

ConfigT = TypeVar("ConfigT", bound=StageConfig, default=StageConfig, covariant=True)


@dataclass(frozen=True)
class Outcome:
    """What a step made: a folder that becomes the artifact, and what to remember about it.

    `digests` are SHA-256 by file name, of files that were hashed when they were written.
    """

    directory: Path
    metadata: Mapping[str, Any] = field(default_factory=dict)
    metrics: Mapping[str, Any] = field(default_factory=dict)
    digests: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Task(Generic[ConfigT]):
    """What a step's work is given. `Task[SFTConfig[AutomodelEngine]]` says whose config it is, and whose engine's.

    `inputs` maps a role ("data", "model") to its artifact, or to None where the config allows to go without; `origins`
    a dotted key to where it was set, "tiny.yaml:14" or "command line".
    """

    config: ConfigT
    inputs: Mapping[str, Artifact | None]
    run: Run
    store: Store
    origins: Mapping[str, str] = field(default_factory=dict)

    def input(self, role: str) -> Artifact:
        """An input that must be there."""
        artifact = self.inputs[role]
        assert artifact is not None, f"{role} was resolved before the work began"
        return artifact
