"""Damage to the stored inputs of a replay."""

import shlex
from collections.abc import Iterable, Sequence
from functools import partial

from nemotron_app.replay.past import IMPORT
from nemotron_app.replay.repair import in_the_way
from nemotron_shared.artifacts import Artifact, Store
from nemotron_shared.artifacts.manifest import MANIFEST
from nemotron_shared.artifacts.verified import command_that_made, damage_of, in_short, remove_and_make, strays_in
from nemotron_shared.errors import UserError


def require_intact(store: Store, made: Artifact, inputs: Iterable[Artifact]) -> None:
    """Check the inputs that a replay would read from the store.

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


def what_next(artifact: Artifact, damage: Sequence[str], *, tried: bool) -> str:
    """The remedy for a damaged stored copy; `tried` means that repairing was already attempted."""
    if strays := strays_in(artifact, damage):
        return f"delete what does not belong there: {shlex.join(strays)}"
    if any(line.startswith(f"{MANIFEST}:") for line in damage):
        return remove_and_make(artifact)
    repair = f"nemotron artifacts replay {artifact.reference} --repair"
    places = {str(path): None for path in map(partial(in_the_way, artifact), artifact.manifest.files) if path}
    if places:
        return (
            f"move away what lies in the place of its files: {shlex.join(['mv', *places, 'ELSEWHERE'])}; then: {repair}"
        )
    if not tried:
        return f"put its bytes back: {repair}"
    kept = f"use its files as they are: cp -r {artifact.path} ./kept, then give ./kept"
    return f"make another version: {command_that_made(artifact.manifest)}; or {kept}"
