"""Where an artifact came from, up to the raw sources: as a list, as text, or as a Mermaid flowchart.

    super3-sft-model:v1  ModelArtifact
    ├── data: super3-sft-data:v1  SFTDataArtifact
    │   └── source: hf://org/conversations  1b2c3d4e5f60
    └── model: super3-pretrain-model:v1  ModelArtifact
        └── data: super3-pretrain-data:v1  PretrainBlendsArtifact
            └── source: hf://org/web-text  77ab01cd23ef

Parents that are gone, unreadable, or no longer what was read then are shown as such: a record of the past
must stay legible when the store has moved on.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from nemotron_shared.artifacts.artifact import Artifact
from nemotron_shared.artifacts.manifest import Parent
from nemotron_shared.artifacts.names import parse_exact
from nemotron_shared.artifacts.store import Store
from nemotron_shared.errors import UserError, printable


@dataclass(frozen=True)
class Input:
    """One thing that an artifact was made from: a parent (`artifact` is None if it is lost) or a raw source.

    `label` is the parent's reference or the source's URI, `digest` what was recorded when it was read.
    """

    label: str
    digest: str
    role: str
    artifact: Artifact | None = None
    problem: str | None = None

    @property
    def is_source(self) -> bool:
        return self.artifact is None and self.problem is None

    @property
    def key(self) -> tuple[str, str]:
        """One per node of the history: a source with new content is another source."""
        return (self.label, self.digest if self.is_source else "")


@dataclass(frozen=True)
class Edge:
    """`input` was read to make `made`, a reference."""

    input: Input
    made: str


def inputs(store: Store, artifact: Artifact) -> list[Input]:
    """What the artifact was directly made from, parents first."""
    parents = [_parent_input(store, parent) for parent in artifact.manifest.parents]
    return parents + [Input(source.uri, source.digest, "source") for source in artifact.manifest.sources]


def edges(store: Store, artifact: Artifact) -> list[Edge]:
    """Every step of the history once, the oldest first."""
    return list(_walk(store, artifact, seen=set()))


def ancestors(store: Store, artifact: Artifact) -> list[Artifact]:
    """Every artifact of the store that this one derives from, each once, parents before their children."""
    known = (edge.input.artifact for edge in edges(store, artifact))
    unique = {found.reference: found for found in known if found}
    unique.pop(artifact.reference, None)
    return list(unique.values())


def tree_text(store: Store, artifact: Artifact) -> str:
    """The history as an indented tree; a shared ancestor is spelled out where it appears first."""
    lines = [_title(artifact), *_branches(store, artifact, "", seen={artifact.reference})]
    return "\n".join(lines)


def mermaid(store: Store, artifact: Artifact) -> str:
    """The history as a Mermaid flowchart, which Markdown viewers draw, from raw sources to the artifact."""
    steps = edges(store, artifact)
    nodes = {edge.input.key: _shape(edge.input) for edge in steps}
    nodes[(artifact.reference, "")] = f'["{_caption(artifact)}"]'
    ids = {key: f"n{index}" for index, key in enumerate(nodes)}
    lines = ["flowchart LR", *(f"  {ids[key]}{shape}" for key, shape in nodes.items())]
    for edge in steps:
        lines.append(f'  {ids[edge.input.key]} -->|"{_escape(_role(edge.input))}"| {ids[(edge.made, "")]}')
    doubtful = sorted({ids[edge.input.key] for edge in steps if edge.input.problem})
    if doubtful:
        lines += ["  classDef problem stroke:#c00,stroke-dasharray:4", f"  class {','.join(doubtful)} problem"]
    return "\n".join(lines)


def _parent_input(store: Store, parent: Parent) -> Input:
    reference = parse_exact(parent.reference)
    lost = Input(parent.reference, parent.digest, parent.role)
    if reference is None or reference.version not in store.versions(reference.name):
        return replace(lost, problem="missing from the store")
    try:
        found = store.resolve(reference)
    except UserError as error:
        return replace(lost, problem=f"unreadable: {error.message}")
    changed = found.manifest.digest != parent.digest
    problem = f"changed: was {parent.digest[:12]}, is {found.manifest.digest[:12]}" if changed else None
    return replace(lost, artifact=found, problem=problem)


def _walk(store: Store, artifact: Artifact, seen: set[str]) -> Iterator[Edge]:
    seen.add(artifact.reference)
    for found in inputs(store, artifact):
        if found.artifact and found.label not in seen:
            yield from _walk(store, found.artifact, seen)
        yield Edge(found, artifact.reference)


def _branches(store: Store, artifact: Artifact, indent: str, seen: set[str]) -> Iterator[str]:
    below = inputs(store, artifact)
    for found in below:
        last = found is below[-1]
        repeated = found.artifact is not None and found.label in seen
        note = " (as above)" if repeated else ""
        problem = f"  [{found.problem}]" if found.problem else ""
        title = _title(found.artifact) if found.artifact else f"{found.label}  {found.digest[:12]}"
        line = printable(f"{found.role}: {title}{note}{problem}")  # it goes to a terminal, and is what a file says
        yield f"{indent}{'└── ' if last else '├── '}{line}"
        if found.artifact and not repeated:
            seen.add(found.label)
            yield from _branches(store, found.artifact, indent + ("    " if last else "│   "), seen)


def _title(artifact: Artifact) -> str:
    return f"{artifact.reference}  {artifact.manifest.type}"


def _caption(artifact: Artifact) -> str:
    return f"{_escape(artifact.reference)}<br/>{_escape(artifact.manifest.type)}"


def _shape(found: Input) -> str:
    if found.artifact:
        return f'["{_caption(found.artifact)}"]'
    if found.problem:
        return f'["{_escape(found.label)}<br/>{_escape(found.problem)}"]'
    return f'[("{_escape(found.label)}")]'


def _role(found: Input) -> str:
    return f"{found.role}, {found.problem}" if found.problem and found.artifact else found.role


def _escape(text: str) -> str:
    """Mermaid's own entities for everything that it could read as markup within quotes."""
    return "".join(char if char.isalnum() or char in " :/.,-_=@%+?" else f"#{ord(char)};" for char in text)
