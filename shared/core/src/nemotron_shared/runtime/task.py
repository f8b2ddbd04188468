"""Input and output of a step's work."""

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
    """Result of a step: the folder that becomes the artifact, and what to record about it.

    `digests` are SHA-256 by file name, for files hashed while they were written.
    """

    directory: Path
    metadata: Mapping[str, Any] = field(default_factory=dict)
    metrics: Mapping[str, Any] = field(default_factory=dict)
    digests: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Task(Generic[ConfigT]):
    """Everything a step's work needs. `Task[SFTConfig[AutomodelEngine]]` names the types of its config and engine.

    `inputs` maps a role ("data", "model") to its artifact, or to None if the config allows it to be missing; `origins`
    maps a dotted key to the place that set it, "tiny.yaml:14" or "command line".
    """

    config: ConfigT
    inputs: Mapping[str, Artifact | None]
    run: Run
    store: Store
    origins: Mapping[str, str] = field(default_factory=dict)

    def input(self, role: str) -> Artifact:
        """An input that must exist."""
        artifact = self.inputs[role]
        assert artifact is not None, f"{role} was resolved before the work began"
        return artifact
