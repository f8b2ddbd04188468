"""Stored copies that are no longer what was published: an input of a replay, or the artifact that is made again."""

from collections.abc import Iterable, Sequence

from nemotron_app.replay.past import IMPORT
from nemotron_shared.artifacts import Artifact, Store
from nemotron_shared.artifacts.artifact import problems
from nemotron_shared.artifacts.verified import known_digests
from nemotron_shared.errors import UserError

MOST_SHOWN = 3


def damage_of(store: Store, artifact: Artifact) -> list[str]:
    """What a stored copy differs in from its manifest, one line for each file."""
    with known_digests(store.home, artifact.reference.replace(":", "-"), artifact.reference) as digest:
        return problems(artifact, digest=digest)


def as_phrase(artifact: Artifact, damage: Sequence[str]) -> str:
    """`model.safetensors: content changed (in FOLDER)`."""
    more = f"; and {len(damage) - MOST_SHOWN} more" if len(damage) > MOST_SHOWN else ""
    return f"{'; '.join(damage[:MOST_SHOWN])}{more} (in {artifact.path})"


def require_intact(store: Store, made: Artifact, inputs: Iterable[Artifact]) -> None:
    """Look at the inputs that a replay would read as they are.

    Raises:
        UserError: one is damaged.
    """
    for one in inputs:
        damage = damage_of(store, one)
        if not damage:
            continue
        remedy = f"restore {one.path} from a copy"
        if one.manifest.producer.verb != IMPORT:
            remedy += f", or make {one.reference} anew too: nemotron artifacts replay {made.reference} --lineage"
        raise UserError(
            f"{made.reference} cannot be replayed from {one.reference}, which is damaged: {as_phrase(one, damage)}",
            remedy,
        )
