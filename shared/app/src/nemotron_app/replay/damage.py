"""Inputs of a replay whose stored copies are no longer what was published."""

from collections.abc import Iterable

from nemotron_app.replay.past import IMPORT
from nemotron_shared.artifacts import Artifact, Store
from nemotron_shared.artifacts.verified import damage_of, in_short
from nemotron_shared.errors import UserError


def require_intact(store: Store, made: Artifact, inputs: Iterable[Artifact]) -> None:
    """Look at the inputs that a replay would read as they are.

    Raises:
        UserError: one is damaged.
    """
    for one in inputs:
        damage = damage_of(one, store.home)
        if not damage:
            continue
        remedy = f"restore {one.path} from a copy"
        if one.manifest.producer.verb != IMPORT:
            remedy += f", or make {one.reference} anew too: nemotron artifacts replay {made.reference} --lineage"
        raise UserError(
            f"{made.reference} cannot be replayed from {one.reference}, which is damaged: {in_short(one, damage)}",
            remedy,
        )
