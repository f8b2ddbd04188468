"""`nemotron artifacts`: inspect and manage what the stages made.

    nemotron artifacts                             every artifact
    nemotron artifacts show sft                    one artifact: what made it, its inputs, its scores
    nemotron artifacts lineage rl:v2 --mermaid     its history, to paste into a Markdown page
    nemotron artifacts replay sft                  make it again from its manifest, and compare the bytes
    nemotron artifacts verify                      hash every file again; exit code 1 if one differs
    nemotron artifacts alias sft:v3 best           make sft:best refer to version 3
    nemotron artifacts path sft:best               its folder, for use in other programs
    nemotron artifacts rm sft:v2                   remove a version that nothing else was made from
    nemotron artifacts gc --keep 2 --yes           remove older versions that nothing needs, and leftovers

Every command takes --json, --home DIR and --family NAME.
"""

import json
from functools import lru_cache
from importlib import import_module
from typing import Any

import click
from humanize import naturalsize

from nemotron_app import completion
from nemotron_app.store_options import Look, store_options
from nemotron_app.wording import minute, table_lines
from nemotron_shared.artifacts.housekeeping import clean, plan_cleanup, remove
from nemotron_shared.artifacts.index import Entry, entry_of
from nemotron_shared.artifacts.lineage import edges, few_sources, inputs, mermaid, tree_text
from nemotron_shared.artifacts.manifest import OlderLayout
from nemotron_shared.artifacts.names import ALIASES, LATEST, REUSED, Reference, is_path, parse_reference
from nemotron_shared.artifacts.store import Store
from nemotron_shared.artifacts.verified import manifest_problem
from nemotron_shared.system.errors import UserError, printable

size_of = lru_cache(maxsize=1000)(naturalsize)
"""Cached: humanize looks up a translation on each call, and versions of an artifact are often of equal size."""
FILES_SHOWN = 20
LONGEST = 400
REPLAY = "replay"
REFERENCE = click.argument("reference", metavar="NAME[:V]", shell_complete=completion.artifacts)


class Artifacts(click.Group):
    """The subcommands. `replay` is imported only when called, since it needs many modules that the others do not."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """See the base class."""
        return sorted([*super().list_commands(ctx), REPLAY])

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """See the base class."""
        if cmd_name == REPLAY:
            return import_module("nemotron_app.replay.command").command
        return super().get_command(ctx, cmd_name)


@click.group("artifacts", cls=Artifacts, invoke_without_command=True)
@store_options
def command(look: Look) -> int | None:
    """Look at what the stages made; without a command, list it."""
    return None if click.get_current_context().invoked_subcommand else print_list(look)


def print_list(look: Look) -> int:
    """Print one line for each version of each artifact."""
    listed, rows = [], []
    for shelf in look.store.listed():
        name, versions, also = shelf.name, list(shelf.versions), {}
        try:
            if shelf.problem is not None:
                raise shelf.problem
            has_other_names = ALIASES in shelf.files or REUSED in shelf.files  # else skip reading them
            also = other_names(look.store, name, versions) if has_other_names else {versions[-1]: [LATEST]}
        except UserError as error:  # of a single name: list its readable versions, and all other artifacts
            problem = f"damaged: {error.message}; {error.remedy}"
            listed.append({"reference": name, "aliases": [], "path": str(look.store.root / name), "problem": problem})
            rows.append([name, "", problem, "", "", ""])
        for version, found in shelf.versions.items():
            others = also.get(version, [])
            if look.json:
                place = str(look.store.root / name / f"v{version}")
                listed.append({"reference": f"{name}:v{version}", "aliases": others} | _summary(found, place))
            else:
                about = (
                    [found.type, minute(found.created_at), str(found.files), size_of(found.bytes)]
                    if isinstance(found, Entry)
                    else [_problem(found), "", "", ""]
                )
                rows.append([f"{name}:v{version}", ", ".join(others), *about])
    headings = ("artifact", "also", "type", "created", "files", "size")
    nothing = f"no artifacts in {look.store.root}; the stages put theirs there"
    spare = ("files", "also", "created")
    look.tell(listed, *(table_lines(headings, rows, right=("size",), spare=spare) if rows else [nothing]))
    return 0


@command.command("list")
@store_options
def list_(look: Look) -> int:
    """Every artifact (the default)."""
    return print_list(look)


@command.command()
@REFERENCE
@store_options
def show(look: Look, reference: str) -> int:
    """Show what made an artifact, from which inputs, and how it scored."""
    artifact = look.store.resolve(reference, family=look.family)
    manifest, producer = artifact.manifest, artifact.manifest.producer
    also = []
    if not artifact.is_external:
        also = other_names(look.store, manifest.name, look.store.versions(manifest.name))[manifest.version]
    files = [f"{name}  {naturalsize(entry.bytes)}" for name, entry in manifest.files.items()]
    if len(files) > FILES_SHOWN:
        files[FILES_SHOWN:] = [f"and {len(files) - FILES_SHOWN} more"]
    made_from, more = few_sources(inputs(look.store, artifact))
    problem = manifest_problem(artifact)
    details = {
        "artifact": [artifact.reference],
        "problem": [problem or ""],
        "also": [", ".join(also)],
        "type": [manifest.type],
        "created": [minute(manifest.created_at)],
        "made by": [f"{producer.stage} {producer.verb} {producer.stage_version}".strip()],
        "command": [producer.command],
        "code": [producer.git or producer.code_digest[:12]],
        "made from": [
            *(f"{found.role}: {found.label}{f'  [{found.problem}]' if found.problem else ''}" for found in made_from),
            f"and {more:,} more sources" if more else "",
        ],
        "metrics": _pairs(manifest.metrics),
        "metadata": _pairs(manifest.metadata),
        "fingerprint": [manifest.fingerprint],
        "digest": [manifest.digest],
        "path": [str(artifact.path)],
        "size": [naturalsize(artifact.size)],
        "files": files,
    }
    lines = []
    for heading, told in details.items():
        for number, line in enumerate(filter(None, told)):
            lines.append(f"{'' if number else heading:<13}{printable(line)}")
    summary = {"reference": artifact.reference, "aliases": also} | _summary(entry_of(manifest), str(artifact.path))
    summary["problem"] = problem
    look.tell(summary | {"manifest": manifest.to_json()}, *lines)
    return 0


@command.command()
@REFERENCE
@click.option("--mermaid", "as_mermaid", is_flag=True, help="a flowchart for Markdown")
@store_options
def lineage(look: Look, reference: str, as_mermaid: bool) -> int:
    """Show the history of an artifact, up to the raw sources."""
    artifact = look.store.resolve(reference, family=look.family)
    steps = []
    for edge in edges(look.store, artifact):
        one = edge.input
        step = {"input": one.label, "digest": one.digest, "role": one.role, "problem": one.problem, "made": edge.made}
        steps.append(step)
    look.tell(steps, (mermaid if as_mermaid else tree_text)(look.store, artifact))
    return 0


@command.command()
@click.argument("reference", metavar="[NAME[:V]]", required=False, shell_complete=completion.artifacts)
@click.option("--fast", is_flag=True, help="compare sizes only")
@store_options
def verify(look: Look, reference: str | None, fast: bool) -> int:
    """Hash the files again; exit code 1 if one differs."""
    store = look.store
    results: dict[str, list[str]] = {}
    if reference is None:
        shelves = list(store.listed())
        wanted = [Reference(shelf.name, version) for shelf in shelves for version in shelf.versions]
        results = {shelf.name: [shelf.problem.message] for shelf in shelves if shelf.problem}
    elif is_path(reference):
        wanted = [reference]
    else:
        named = parse_reference(reference, look.family)
        wanted = [Reference(named.name, store.version_of(named))]
    for one in wanted:
        try:
            artifact = store.resolve(one, family=look.family)
            results[artifact.reference] = store.verify(artifact, fast=fast)
        except UserError as error:
            if one == reference:  # the path does not exist; a damaged artifact, in contrast, is a result to report
                raise
            results[str(one)] = [error.message]
    lines = []
    for name, problems in results.items():
        lines += [f"{name}: {'damaged' if problems else 'ok'}", *(f"  {printable(problem)}" for problem in problems)]
    look.tell([{"reference": name, "problems": problems} for name, problems in results.items()], *lines)
    return 1 if any(results.values()) else 0


@command.command()
@REFERENCE
@click.argument("alias")
@store_options
def alias(look: Look, reference: str, alias: str) -> int:
    """Give a version a name of your choice."""
    artifact = look.store.resolve(reference, family=look.family)
    look.store.set_alias(artifact.manifest.name, artifact.manifest.version, alias)
    whole = f"{artifact.manifest.name}:{alias}"
    look.tell({"alias": whole, "reference": artifact.reference}, f"{whole} is now {artifact.reference}")
    return 0


@command.command()
@REFERENCE
@store_options
def path(look: Look, reference: str) -> int:
    """Print the folder of an artifact."""
    folder = str(look.store.resolve(reference, family=look.family).path)
    look.tell({"path": folder}, folder)
    return 0


@command.command()
@REFERENCE
@store_options
def rm(look: Look, reference: str) -> int:
    """Remove a version that nothing else was made from."""
    wanted = parse_reference(reference, look.family)
    exact = Reference(wanted.name, look.store.version_of(wanted))
    dropped = remove(look.store, exact)
    also = f", and its aliases: {', '.join(dropped)}" if dropped else ""
    look.tell({"removed": str(exact), "aliases": dropped}, f"removed {exact}{also}")
    return 0


@command.command()
@click.option("--keep", type=click.IntRange(min=1), default=1, show_default=True, help="newest versions to keep")
@click.option("--yes", is_flag=True, help="remove what is listed")
@store_options
def gc(look: Look, keep: int, yes: bool) -> int:
    """List versions that nothing needs; remove them with --yes."""
    found = plan_cleanup(look.store, keep)
    size = found.size(look.store)
    versions, leftovers = [str(version) for version in found.versions], [str(path) for path in found.leftovers]
    if yes:
        clean(look.store, found)
    lines = [printable(f"{'removed' if yes else 'would remove'} {thing}") for thing in [*versions, *leftovers]]
    total = f"{naturalsize(size)} {'freed' if yes else 'in all; to remove it: nemotron artifacts gc --yes'}"
    value = {"versions": versions, "leftovers": leftovers, "bytes": size, "removed": yes}
    look.tell(value, *([*lines, total] if lines else ["nothing to remove"]))
    return 0


def other_names(store: Store, name: str, versions: list[int]) -> dict[int, list[str]]:
    """`latest` and the aliases of an artifact, by version."""
    others: dict[int, list[str]] = {version: [] for version in versions}
    others[store.latest_of(name, versions)].append(LATEST)
    for alias, version in store.aliases(name).items():
        if version in others:
            others[version].append(alias)
    return others


def _summary(found: Entry | UserError, place: str) -> dict[str, Any]:
    """JSON output for one artifact; an unreadable one becomes an error entry and does not hide the others."""
    if isinstance(found, UserError):
        return {"path": place, "problem": _problem(found)}
    return {
        "type": found.type,
        "created_at": found.created_at,
        "bytes": found.bytes,
        "files": found.files,
        "path": place,
        "problem": None,
    }


def _problem(error: UserError) -> str:
    return "older layout" if isinstance(error, OlderLayout) else f"damaged: {error.message}"


def _pairs(values: dict[str, Any]) -> list[str]:
    pairs = [f"{key}: {json.dumps(value, ensure_ascii=False)}" for key, value in values.items()]
    return [text if len(text) <= LONGEST else f"{text[:LONGEST]} ... (--json has all)" for text in pairs]
