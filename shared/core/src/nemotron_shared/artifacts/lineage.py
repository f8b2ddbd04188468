"""The lineage of an artifact back to its raw sources, as a list, text or Mermaid flowchart.

    super3-sft-model:v1  ModelArtifact
    ├── data: super3-sft-data:v1  SFTDataArtifact
    │   └── source: hf://org/conversations  1b2c3d4e5f60
    └── model: super3-pretrain-model:v1  ModelArtifact
        └── data: super3-pretrain-data:v1  PretrainBlendsArtifact
            └── source: hf://org/web-text  77ab01cd23ef

Parents that are missing, unreadable or changed since are shown as such: history must stay legible when the store
moves on.
"""

from dataclasses import dataclass

from nemotron_shared.artifacts.artifact import Artifact
from nemotron_shared.artifacts.names import parse_exact
from nemotron_shared.artifacts.store import Store
from nemotron_shared.system.errors import UserError, printable

MOST_SOURCES = 10


@dataclass(frozen=True)
class Input:
    """An input of an artifact: a parent (with `artifact` None if lost) or a raw source.

    `label` is the parent's reference or the source's URI, `digest` the one recorded when it was read.
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
        """Identity of its node in the graph: a source with new content is another source."""
        return (self.label, self.digest if self.is_source else "")


@dataclass(frozen=True)
class Edge:
    """`input` was used to make `made`, a reference."""

    input: Input
    made: str


def inputs(store: Store, artifact: Artifact) -> list[Input]:
    """Direct inputs of an artifact, parents first."""
    found = []
    for parent in artifact.manifest.parents:
        reference = parse_exact(parent.reference)
        read, problem = None, "missing from the store"
        if reference is not None and reference.version in store.versions(reference.name):
            try:
                read = store.resolve(reference)
                changed = read.manifest.digest != parent.digest
                problem = f"changed: was {parent.digest[:12]}, is {read.manifest.digest[:12]}" if changed else None
            except UserError as error:
                problem = f"unreadable: {error.message}"
        found.append(Input(parent.reference, parent.digest, parent.role, read, problem))
    return found + [Input(source.uri, source.digest, "source") for source in artifact.manifest.sources]


def few_sources(read: list[Input]) -> tuple[list[Input], int]:
    """Inputs to show to people: all of them, except that long lists of sources are cut; and how many were left out.

    Expects sources last, as `inputs` returns them.
    """
    sources = [one for one in read if one.is_source]
    more = len(sources) - MOST_SOURCES if len(sources) > MOST_SOURCES + 1 else 0
    return read[: len(read) - more], more


def edges(store: Store, artifact: Artifact) -> list[Edge]:
    """Every step of the history once, oldest first."""
    found: list[Edge] = []
    seen: set[str] = set()

    def walk(artifact: Artifact) -> None:
        seen.add(artifact.reference)
        for read in inputs(store, artifact):
            if read.artifact and read.label not in seen:
                walk(read.artifact)
            found.append(Edge(read, artifact.reference))

    walk(artifact)
    return found


def ancestors(store: Store, artifact: Artifact) -> list[Artifact]:
    """All artifacts in the store that this one derives from, each once, parents before children."""
    known = (edge.input.artifact for edge in edges(store, artifact))
    unique = {found.reference: found for found in known if found}
    unique.pop(artifact.reference, None)
    return list(unique.values())


def tree_text(store: Store, artifact: Artifact) -> str:
    """The history as an indented tree; a shared ancestor is expanded only where it first appears."""
    lines = [f"{artifact.reference}  {artifact.manifest.type}"]
    seen = {artifact.reference}

    def branch(artifact: Artifact, indent: str) -> None:
        below, more = few_sources(inputs(store, artifact))
        for found in below:
            last = found is below[-1] and not more
            repeated = found.artifact is not None and found.label in seen
            about = found.artifact.manifest.type if found.artifact else found.digest[:12]
            note = " (as above)" if repeated else ""
            problem = f"  [{found.problem}]" if found.problem else ""
            # text from a file, about to go to a terminal
            line = printable(f"{found.role}: {found.label}  {about}{note}{problem}")
            lines.append(f"{indent}{'└── ' if last else '├── '}{line}")
            if found.artifact and not repeated:
                seen.add(found.label)
                branch(found.artifact, indent + ("    " if last else "│   "))
        if more:
            lines.append(f"{indent}└── and {more:,} more sources")

    branch(artifact, "")
    return "\n".join(lines)


def mermaid(store: Store, artifact: Artifact) -> str:
    """The history as a Mermaid flowchart, which Markdown viewers render, from raw sources to the artifact."""
    steps = edges(store, artifact)
    nodes: dict[tuple[str, str], str] = {}
    for found in [*(edge.input for edge in steps), Input(artifact.reference, "", "", artifact)]:
        below = found.artifact.manifest.type if found.artifact else found.problem
        caption = _escape(found.label) + (f"<br/>{_escape(below)}" if below else "")
        nodes[found.key] = f'[("{caption}")]' if found.is_source else f'["{caption}"]'
    ids = {key: f"n{index}" for index, key in enumerate(nodes)}
    lines = ["flowchart LR", *(f"  {ids[key]}{shape}" for key, shape in nodes.items())]
    for edge in steps:
        found = edge.input
        role = f"{found.role}, {found.problem}" if found.problem and found.artifact else found.role
        lines.append(f'  {ids[found.key]} -->|"{_escape(role)}"| {ids[(edge.made, "")]}')
    doubtful = sorted({ids[edge.input.key] for edge in steps if edge.input.problem})
    if doubtful:
        lines += ["  classDef problem stroke:#c00,stroke-dasharray:4", f"  class {','.join(doubtful)} problem"]
    return "\n".join(lines)


def _escape(text: str) -> str:
    """Replace characters that Mermaid could read as markup within quotes by its entities."""
    return "".join(char if char.isalnum() or char in " :/.,-_=@%+?" else f"#{ord(char)};" for char in text)
