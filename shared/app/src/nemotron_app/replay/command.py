"""`nemotron artifacts replay`: reproduce an artifact from its manifest, and compare the bytes.

nemotron artifacts replay sft                 in a separate store, from the same inputs
nemotron artifacts replay sft:v2 --keep       and keep that store for inspection

Exit code 0: the same bytes; 1: different bytes, a damaged stored copy, or a step that failed.
"""

import shutil
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click

from nemotron_app.launch import ask_step
from nemotron_app.replay.compare import Compared, compare
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
from nemotron_shared.artifacts.manifest import MANIFEST
from nemotron_shared.artifacts.verified import damage_of, in_short, remove_and_make, ways_out
from nemotron_shared.system.console import say
from nemotron_shared.system.errors import UserError, printable


@dataclass(frozen=True)
class Replayed:
    """A reproduced artifact: its files compared with the original ones, and damage to the stored copy."""

    past: Past
    damage: list[str]
    changes: list[str]
    now: Artifact
    files: list[Compared]

    @property
    def different(self) -> list[Compared]:
        """Files whose bytes differ."""
        return [file for file in self.files if file.problem]


@click.command("replay", short_help="Make it again, and compare the bytes.")
@click.argument("reference", metavar="NAME[:V]")
@click.option("--keep", is_flag=True, help="leave the store of the replay where it is")
@click.option("--trust-code", is_flag=True, help="run the Python files that it was made with")
@store_options
def command(look: Look, reference: str, keep: bool, trust_code: bool) -> int:
    """Reproduce an artifact from its manifest, and compare the bytes; exit code 1 if they differ or the store is
    damaged.
    """
    artifact = look.store.resolve(reference, family=look.family)
    scratch = Store(Path(tempfile.mkdtemp(prefix="nemotron-replay-")))
    try:
        replayed = replay(look.store, artifact, scratch, trust_code=trust_code)
    finally:
        if not keep:
            shutil.rmtree(scratch.home, ignore_errors=True)
    lines = _lines(replayed)
    if keep:
        lines.append(f"the store of the replay: {scratch.home}")
    look.tell([_as_json(replayed)], *lines)
    return 1 if replayed.different or replayed.damage else 0


def replay(store: Store, artifact: Artifact, scratch: Store, *, trust_code: bool = False) -> Replayed:
    """Reproduce an artifact in the store `scratch`.

    Raises:
        UserError: an input is missing, damaged or has changed, or the step failed.
    """
    past = past_of(store, artifact, trust_code=trust_code)
    # All ancestors are needed, not only direct inputs: an evaluation finds the training data through its models.
    for ancestor in ancestors(store, artifact):
        _link(scratch, ancestor)
    inputs = inputs_of(store, artifact)
    for parent in inputs.values():
        if damage := damage_of(parent, store.home):
            raise _damaged(artifact, parent, damage)
    with original_cwd(artifact):
        plan = plan_replay(past, scratch, inputs)
        how = with_inputs(plan.how, scratch.home, {role: parent.reference for role, parent in inputs.items()})
        return _run_step(past, replace(plan, how=how), scratch, damage_of(artifact, store.home))


def _link(store: Store, artifact: Artifact) -> None:
    """Link an artifact into another store under its own name and version."""
    place = store.root / artifact.manifest.name / f"v{artifact.manifest.version}"
    place.parent.mkdir(parents=True, exist_ok=True)
    place.symlink_to(artifact.path.resolve())


def _damaged(artifact: Artifact, parent: Artifact, damage: list[str]) -> UserError:
    """The error for a damaged input."""
    remedy = f"restore {parent.path} from a copy"
    if parent.manifest.producer.verb != IMPORT:
        remedy += f", or from its own replay: nemotron artifacts replay {parent.reference} --keep"
    problem = f"{artifact.reference} cannot be replayed from {parent.reference}, which is damaged"
    return UserError(f"{problem}: {in_short(parent, damage)}", remedy)


def _run_step(past: Past, plan: ReplayPlan, scratch: Store, damage: list[str]) -> Replayed:
    """Run the step that made the artifact, and compare the files; `damage` is that of the stored copy."""
    say(f"[replay] {past.artifact.reference} by {plan.origin}")
    if past.doubt is not None:
        say(f"[replay] {printable(past.doubt)}, so its bytes are not promised")
    if damage:
        say(f"[replay] the stored copy is damaged: {printable(in_short(past.artifact, damage))}")
    for change in plan.changes:
        say(f"[replay] not as it was: {printable(change)}")
    made = past.artifact.manifest.producer
    words = (made.stage,) if made.verb == "train" else ("data", "prep", made.stage)
    how = plan.how
    request = Request(
        past.family, words, how.config, how.overrides, dry_run=False, json=True, trust_code=how.trust_code
    )
    code, answer = ask_step(made.stage, made.verb, request)
    if code:
        raise UserError(f"{past.artifact.reference}: its step failed in the replay (exit code {code})", "see above")
    now = scratch.resolve(answer["artifact"])
    return Replayed(past, damage, plan.changes, now, compare(past.artifact, now))


def _lines(replayed: Replayed) -> list[str]:
    """Result lines, one for each file that differs or was compared only in part."""
    total, different = len(replayed.files), len(replayed.different)
    lines = []
    for file in replayed.files:
        if file.problem:
            lines.append(f"  {printable(file.name)}: {printable(file.problem)}")
        elif file.note:
            lines.append(f"  {printable(file.name)}: the same, {file.note}")
    doubt = replayed.past.doubt
    promise = f" (its bytes are not promised: {printable(doubt)})" if doubt else ""
    verdict = f"{different} of {total} files differ" if different else f"the same bytes, {total} files"
    then = replayed.past.artifact
    if replayed.damage:
        lines.append(f"  the stored copy is damaged: {printable(in_short(then, replayed.damage))}")
        lines.append(f"    {printable(_remedy(then, replayed.damage))}")
        verdict += ", compared with what its manifest states"
    return [f"{then.reference}: {verdict}{promise}", *lines]


def _remedy(artifact: Artifact, damage: list[str]) -> str:
    """The remedy for a damaged stored copy."""
    if any(line.startswith(f"{MANIFEST}:") for line in damage):
        return remove_and_make(artifact)
    return ways_out(artifact, damage)


def _as_json(replayed: Replayed) -> dict[str, Any]:
    """JSON output of the result."""
    return {
        "artifact": replayed.past.artifact.reference,
        "promised": replayed.past.doubt is None,
        "changes": replayed.changes,
        "damage": replayed.damage,
        "same": not replayed.different,
        "files": [{"name": file.name, "problem": file.problem, "note": file.note} for file in replayed.files],
    }
