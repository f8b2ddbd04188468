"""Artifacts: the versioned, verified folders that stages exchange, with their lineage."""

from nemotron_shared.artifacts.artifact import Artifact
from nemotron_shared.artifacts.manifest import ArtifactType, FileEntry, Manifest, Parent, Producer, Source
from nemotron_shared.artifacts.names import Reference, parse_reference
from nemotron_shared.artifacts.store import Store

__all__ = [
    "Artifact",
    "ArtifactType",
    "FileEntry",
    "Manifest",
    "Parent",
    "Producer",
    "Reference",
    "Source",
    "Store",
    "parse_reference",
]
