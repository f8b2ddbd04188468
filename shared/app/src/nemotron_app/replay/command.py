"""`nemotron artifacts replay`: reproduce an artifact from its lineage, and compare the bytes.

nemotron artifacts replay sft                 in a separate store, from the same inputs
nemotron artifacts replay rl --lineage        with its whole history, each step from the replayed one before it
nemotron artifacts replay sft:v2 --keep       and keep that store for inspection
nemotron artifacts replay sft:v2 --repair     and restore files that are damaged in the store

Exit code 0: the same bytes; 1: different bytes, a damaged stored copy, or a step that failed.
"""

import shutil
import tempfile
from collections.abc import Container, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import click

from nemotron_app.launch import ask_step
from nemotron_app.replay.compare import Compared, compare, repair, require_intact, what_next
from nemotron_app.replay.past import IMPORT, Ahead, Past, inputs_of, link, look_ahead, past_of, reading, where_it_was
from nemotron_app.request import Request
from nemotron_app.store_options import Look, store_options
from nemotron_shared.artifacts import Artifact, Store
from nemotron_shared.artifacts.lineage import ancestors
from nemotron_shared.artifacts.names import SCHEME
from nemotron_shared.artifacts.verified import damage_of, in_short
from nemotron_shared.config.overrides import override
from nemotron_shared.errors import UserError, printable
from nemotron_shared.runtime.console import say


@dataclass(frozen=True)
class Replayed:
    """A reproduced artifact: its files compared with the original ones, and damage to the stored copy.

    Attributes:
        repaired: damaged files that were restored.
    """

    past: Past
    damage: list[str]
    changes: list[str]
    now: Artifact
    files: list[Compared]
    repaired: list[str] = field(default_factory=list)

    @property
    def different(self) -> list[Compared]:
        """Files whose bytes differ."""
        return [file for file in self.files if file.problem]


@click.command("replay", short_help="Make it again, and compare the bytes.")
@click.argument("reference", metavar="NAME[:V]")
@click.option("--lineage", is_flag=True, help="make everything again that it was made from, too")
@click.option("--keep", is_flag=True, help="leave the store of the replay where it is")
@click.option("--repair", "repairs", is_flag=True, help="put files back that are damaged, where the bytes agree")
@store_options
def command(look: Look, reference: str, lineage: bool, keep: bool, repairs: bool) -> int:
    """Reproduce an artifact from its lineage, and compare the bytes; exit code 1 if they differ or the store is
    damaged.
    """
    artifact = look.store.resolve(reference, family=look.family)
    scratch = Store(Path(tempfile.mkdtemp(prefix="nemotron-replay-")))
    try:
        found = replay(look.store, artifact, scratch, lineage=lineage)
        found = [_repaired(look.store, one) if repairs and one.damage else one for one in found]
    finally:
        if not keep:
            shutil.rmtree(scratch.home, ignore_errors=True)
    lines = [line for one in found for line in told(one, tried=repairs)]
    if keep:
        lines.append(f"the store of the replay: {scratch.home}")
    look.tell([as_json(one) for one in found], *lines)
    return 1 if any(one.different or one.damage for one in found) else 0


def replay(store: Store, artifact: Artifact, scratch: Store, *, lineage: bool) -> list[Replayed]:
    """Reproduce an artifact in the store `scratch`; with `lineage`, also everything it was made from.

    Raises:
        UserError: an input is missing or has changed, or a step failed.
    """
    line = [artifact]
    if lineage:
        line = [one for one in ancestors(store, artifact) if one.manifest.producer.verb != IMPORT] + line
    pasts, made_again = [past_of(store, one) for one in line], {one.reference for one in line}
    _let_stand(store, artifact, scratch, made_again)
    # report all missing or changed inputs before the first, possibly slow, step
    aheads = [_ahead(store, past, scratch, made_again) for past in pasts]
    stand_ins: dict[str, str] = {}
    found = []
    for number, (past, ahead) in enumerate(zip(pasts, aheads, strict=True), start=1):
        say(f"[replay] {past.artifact.reference}: {number} of {len(pasts)}")
        with where_it_was(past.artifact):
            found.append(_again(store, past, ahead, scratch, stand_ins))
        stand_ins[past.artifact.reference] = found[-1].now.reference
    return found


def _let_stand(store: Store, artifact: Artifact, scratch: Store, made_again: Container[str]) -> None:
    """Link the ancestors into the store that is looked up first, and those that are not replayed into `scratch`, too.

    All ancestors are needed, not only direct inputs: an evaluation finds the training data through its models' lineage.
    """
    for one in ancestors(store, artifact):
        link(_looked_at_first(scratch), one)
        if one.reference not in made_again:
            link(scratch, one)


def _looked_at_first(scratch: Store) -> Store:
    return Store(scratch.home / "ahead")


def _ahead(store: Store, past: Past, scratch: Store, made_again: Container[str]) -> Ahead | None:
    """Plan a replay; None if a damaged input must be reproduced first and therefore cannot be inspected yet."""
    inputs = inputs_of(store, past.artifact)
    require_intact(store, past.artifact, [one for one in inputs.values() if one.reference not in made_again])
    if any(damage_of(one, store.home) for one in inputs.values()):
        return None
    with where_it_was(past.artifact):
        return look_ahead(past, _looked_at_first(scratch), inputs)


def _again(store: Store, past: Past, ahead: Ahead | None, scratch: Store, stand_ins: Mapping[str, str]) -> Replayed:
    inputs = inputs_of(store, past.artifact)
    references = {role: stand_ins.get(one.reference, one.reference) for role, one in inputs.items()}
    ahead = ahead or look_ahead(past, scratch, {role: scratch.resolve(one) for role, one in references.items()})
    say(f"[replay] by {ahead.told_by}")
    if not past.promises:
        count = len(past.artifact.manifest.segments)
        say(f"[replay] made in {count} segments that were not alike, so its bytes are not promised")
    damage = damage_of(past.artifact, store.home)
    if damage:
        say(f"[replay] the stored copy is damaged: {printable(in_short(past.artifact, damage))}")
    for change in ahead.changes:
        say(f"[replay] not as it was: {printable(change)}")
    made = past.artifact.manifest.producer
    words = (made.stage,) if made.verb == "train" else ("data", "prep", made.stage)
    how = reading(ahead.how, scratch.home, references)
    if made.verb == "data_prep" and references.get("tokenizer") in stand_ins.values():
        named = override("data_prep.tokenizer.model", f"{SCHEME}{references['tokenizer']}")
        how = replace(how, overrides=(*how.overrides, named))
    request = Request(
        past.family, words, how.config, how.overrides, dry_run=False, json=True, trust_code=how.trust_code
    )
    code, answer = ask_step(made.stage, made.verb, request)
    if code:
        raise UserError(f"{past.artifact.reference}: its step failed in the replay (exit code {code})", "see above")
    now = scratch.resolve(answer["artifact"])
    return Replayed(past, damage, ahead.changes, now, compare(past.artifact, now))


def _repaired(store: Store, one: Replayed) -> Replayed:
    names = repair(store, one.past.artifact, one.now)
    then = one.past.artifact
    return replace(one, repaired=names, damage=damage_of(then, store.home), files=compare(then, one.now))


def told(one: Replayed, *, tried: bool) -> list[str]:
    """Result lines, one for each file that differs or was compared only in part."""
    total, different = len(one.files), len(one.different)
    lines = []
    for file in one.files:
        if file.problem:
            lines.append(f"  {printable(file.name)}: {printable(file.problem)}")
        elif file.note:
            lines.append(f"  {printable(file.name)}: the same, {file.note}")
    promise = "" if one.past.promises else " (its bytes are not promised: made in segments that were not alike)"
    verdict = f"{different} of {total} files differ" if different else f"the same bytes, {total} files"
    then = one.past.artifact
    if one.repaired:
        lines.append(f"  put back: {printable(', '.join(one.repaired))}")
    if one.damage:
        lines.append(f"  the stored copy is damaged: {printable(in_short(then, one.damage))}")
        lines.append(f"    {printable(what_next(then, one.damage, tried=tried))}")
        verdict += ", compared with what its manifest states"
    return [f"{then.reference}: {verdict}{promise}", *lines]


def as_json(one: Replayed) -> dict[str, Any]:
    """JSON output of the result."""
    return {
        "artifact": one.past.artifact.reference,
        "promised": one.past.promises,
        "changes": one.changes,
        "damage": one.damage,
        "repaired": one.repaired,
        "same": not one.different,
        "files": [{"name": file.name, "problem": file.problem, "note": file.note} for file in one.files],
    }
