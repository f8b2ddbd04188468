"""`nemotron artifacts replay`: reproduce an artifact from its lineage, and compare the bytes.

nemotron artifacts replay sft                 in a separate store, from the same inputs
nemotron artifacts replay rl --lineage        with its whole history, each step from the replayed one before it
nemotron artifacts replay sft:v2 --keep       and keep that store for inspection
nemotron artifacts replay sft:v2 --repair     and restore files that are damaged in the store

Exit code 0: the same bytes; 1: different bytes, a damaged stored copy, or a step that failed.
"""

import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import click

from nemotron_app.launch import ask_step
from nemotron_app.replay.compare import Compared, compare, repair, what_next
from nemotron_app.replay.past import (
    IMPORT,
    Past,
    ReplayPlan,
    inputs_of,
    original_cwd,
    past_of,
    plan_replay,
    with_inputs,
)
from nemotron_app.request import Request
from nemotron_app.store_options import Look, store_options
from nemotron_shared.artifacts import Artifact, Store
from nemotron_shared.artifacts.lineage import ancestors
from nemotron_shared.artifacts.names import SCHEME
from nemotron_shared.artifacts.verified import damage_of, in_short
from nemotron_shared.config.overrides import override
from nemotron_shared.system.console import say
from nemotron_shared.system.errors import UserError, printable


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
@click.option("--trust-code", is_flag=True, help="run the Python files that it was made with")
@click.option("--repair", "repairs", is_flag=True, help="put files back that are damaged, where the bytes agree")
@store_options
def command(look: Look, reference: str, lineage: bool, keep: bool, trust_code: bool, repairs: bool) -> int:
    """Reproduce an artifact from its lineage, and compare the bytes; exit code 1 if they differ or the store is
    damaged.
    """
    artifact = look.store.resolve(reference, family=look.family)
    scratch = Store(Path(tempfile.mkdtemp(prefix="nemotron-replay-")))
    try:
        found = replay(look.store, artifact, scratch, lineage=lineage, trust_code=trust_code)
        for number, one in enumerate(found):
            if repairs and one.damage:
                then, names = one.past.artifact, repair(look.store, one.past.artifact, one.now)
                damage = damage_of(then, look.store.home)
                found[number] = replace(one, repaired=names, damage=damage, files=compare(then, one.now))
    finally:
        if not keep:
            shutil.rmtree(scratch.home, ignore_errors=True)
    lines = [line for one in found for line in _lines(one, tried=repairs)]
    if keep:
        lines.append(f"the store of the replay: {scratch.home}")
    look.tell([_as_json(one) for one in found], *lines)
    return 1 if any(one.different or one.damage for one in found) else 0


def replay(
    store: Store, artifact: Artifact, scratch: Store, *, lineage: bool, trust_code: bool = False
) -> list[Replayed]:
    """Reproduce an artifact in the store `scratch`; with `lineage`, also everything it was made from.

    Raises:
        UserError: an input is missing or has changed, or a step failed.
    """
    history = list(ancestors(store, artifact))
    line = [artifact]
    if lineage:
        line = [one for one in history if one.manifest.producer.verb != IMPORT] + line
    pasts, made_again = [past_of(store, one, trust_code=trust_code) for one in line], {one.reference for one in line}
    # All ancestors are needed, not only direct inputs: an evaluation finds the training data through its models.
    originals = Store(scratch.home / "ahead")
    for one in history:
        _link(originals, one)
        if one.reference not in made_again:
            _link(scratch, one)
    # report all missing or changed inputs before the first, possibly slow, step
    plans: list[ReplayPlan | None] = []
    for past in pasts:
        inputs = inputs_of(store, past.artifact)
        damaged = {one.reference for one in inputs.values() if damage_of(one, store.home)}
        for one in inputs.values():
            if one.reference in damaged - made_again:
                raise _damaged(store, past.artifact, one)
        with original_cwd(past.artifact):  # a damaged input is reproduced first, and cannot be inspected before
            plans.append(None if damaged else plan_replay(past, originals, inputs))
    replacements: dict[str, str] = {}
    found = []
    for number, (past, plan) in enumerate(zip(pasts, plans, strict=True), start=1):
        say(f"[replay] {past.artifact.reference}: {number} of {len(pasts)}")
        with original_cwd(past.artifact):
            found.append(_replay_one(store, past, plan, scratch, replacements))
        replacements[past.artifact.reference] = found[-1].now.reference
    return found


def _link(store: Store, artifact: Artifact) -> None:
    """Link an artifact into another store under its own name and version."""
    place = store.root / artifact.manifest.name / f"v{artifact.manifest.version}"
    place.parent.mkdir(parents=True, exist_ok=True)
    place.symlink_to(artifact.path.resolve())


def _damaged(store: Store, made: Artifact, read: Artifact) -> UserError:
    """The error for a damaged input that would not be made again."""
    remedy = f"restore {read.path} from a copy"
    if read.manifest.producer.verb != IMPORT:
        remedy += f", or make {read.reference} again, too: nemotron artifacts replay {made.reference} --lineage"
    damage = in_short(read, damage_of(read, store.home))
    return UserError(f"{made.reference} cannot be replayed from {read.reference}, which is damaged: {damage}", remedy)


def _replay_one(
    store: Store, past: Past, plan: ReplayPlan | None, scratch: Store, replacements: Mapping[str, str]
) -> Replayed:
    """Run the step that made one artifact, with replayed inputs in place of the original ones."""
    inputs = inputs_of(store, past.artifact)
    references = {role: replacements.get(one.reference, one.reference) for role, one in inputs.items()}
    plan = plan or plan_replay(past, scratch, {role: scratch.resolve(one) for role, one in references.items()})
    say(f"[replay] by {plan.origin}")
    if not past.promises:
        count = len(past.artifact.manifest.segments)
        say(f"[replay] made in {count} segments that were not alike, so its bytes are not promised")
    damage = damage_of(past.artifact, store.home)
    if damage:
        say(f"[replay] the stored copy is damaged: {printable(in_short(past.artifact, damage))}")
    for change in plan.changes:
        say(f"[replay] not as it was: {printable(change)}")
    made = past.artifact.manifest.producer
    words = (made.stage,) if made.verb == "train" else ("data", "prep", made.stage)
    how = with_inputs(plan.how, scratch.home, references)
    if made.verb == "data_prep" and references.get("tokenizer") in replacements.values():
        named = override("data_prep.tokenizer.model", f"{SCHEME}{references['tokenizer']}")
        how = replace(how, overrides=(*how.overrides, named))
    request = Request(
        past.family, words, how.config, how.overrides, dry_run=False, json=True, trust_code=how.trust_code
    )
    code, answer = ask_step(made.stage, made.verb, request)
    if code:
        raise UserError(f"{past.artifact.reference}: its step failed in the replay (exit code {code})", "see above")
    now = scratch.resolve(answer["artifact"])
    return Replayed(past, damage, plan.changes, now, compare(past.artifact, now))


def _lines(one: Replayed, *, tried: bool) -> list[str]:
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


def _as_json(one: Replayed) -> dict[str, Any]:
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
