"""`nemotron artifacts`: look at what the stages made.

    nemotron artifacts                             every artifact
    nemotron artifacts show sft                    one: who made it, from what, how it scored
    nemotron artifacts lineage rl:v2 --mermaid     its history, to paste into a Markdown page
    nemotron artifacts verify                      hash every file again; exit code 1 if one differs
    nemotron artifacts alias sft:v3 best           from now on sft:best means version 3
    nemotron artifacts path sft:best               its folder, for use in other programs
    nemotron artifacts rm sft:v2                   remove a version that nothing else was made from
    nemotron artifacts gc --keep 2 --yes           remove older versions that nothing needs, and leftovers

Every command takes --json, --home DIR and --family NAME.
"""

from typing import Any

import click
from humanize import naturalsize

from nemotron_app.artifact_details import print_artifact
from nemotron_app.plain import minute, print_json, print_table
from nemotron_app.store_options import Look, store_options
from nemotron_shared.artifacts.artifact import Artifact
from nemotron_shared.artifacts.housekeeping import clean, plan_cleanup, remove
from nemotron_shared.artifacts.lineage import edges, mermaid, tree_text
from nemotron_shared.artifacts.manifest import OlderLayout
from nemotron_shared.artifacts.names import LATEST, Reference, is_path, parse_reference
from nemotron_shared.artifacts.store import Store
from nemotron_shared.errors import UserError, printable

REFERENCE = click.argument("reference", metavar="NAME[:V]")


@click.group("artifacts", invoke_without_command=True)
@store_options
def command(look: Look) -> int | None:
    """Look at what the stages made; without a command, list it."""
    return None if click.get_current_context().invoked_subcommand else print_list(look)


def print_list(look: Look) -> int:
    """Print one line for each version of each artifact."""
    listed, rows = [], []
    for name, versions in look.store.shelves().items():
        others = other_names(look.store, name)
        for version in versions:
            try:
                entry = _summary(look.store.load(name, version), others[version])
                row = [entry["type"], minute(entry["created_at"]), str(entry["files"]), naturalsize(entry["bytes"])]
            except UserError as error:  # one that cannot be read must not hide the others
                problem = "older layout" if isinstance(error, OlderLayout) else f"damaged: {error.message}"
                path = str(look.store.root / name / f"v{version}")
                entry = {"reference": f"{name}:v{version}", "aliases": others[version], "path": path}
                entry, row = entry | {"problem": problem}, [problem, "", "", ""]
            listed.append(entry)
            rows.append([entry["reference"], ", ".join(entry["aliases"]), *row])
    if look.json:
        print_json(listed)
    elif not listed:
        print(f"no artifacts in {look.store.root}; the stages put theirs there")
    else:
        print_table(("artifact", "also", "type", "created", "files", "size"), rows, ("size",))
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
    """Who made an artifact, from what, and how it scored."""
    artifact = look.store.resolve(reference, family=look.family)
    name, version = artifact.manifest.name, artifact.manifest.version
    also = [] if artifact.is_external else other_names(look.store, name)[version]
    if look.json:
        print_json(_summary(artifact, also) | {"manifest": artifact.manifest.to_json()})
    else:
        print_artifact(look.store, artifact, also)
    return 0


@command.command()
@REFERENCE
@click.option("--mermaid", "as_mermaid", is_flag=True, help="a flowchart for Markdown")
@store_options
def lineage(look: Look, reference: str, as_mermaid: bool) -> int:
    """Its history up to the raw sources."""
    artifact = look.store.resolve(reference, family=look.family)
    if look.json:
        found = [(edge.input, edge.made) for edge in edges(look.store, artifact)]
        print_json(
            [
                {"input": one.label, "digest": one.digest, "role": one.role, "problem": one.problem, "made": made}
                for one, made in found
            ]
        )
    else:
        print((mermaid if as_mermaid else tree_text)(look.store, artifact))
    return 0


@command.command()
@click.argument("reference", metavar="[NAME[:V]]", required=False)
@click.option("--fast", is_flag=True, help="compare sizes only")
@store_options
def verify(look: Look, reference: str | None, fast: bool) -> int:
    """Hash the files again, of one or of all; exit code 1 if one differs."""
    store = look.store
    if reference is None:
        wanted = [Reference(name, version) for name, versions in store.shelves().items() for version in versions]
    elif is_path(reference):
        wanted = [reference]
    else:
        named = parse_reference(reference, look.family)
        wanted = [Reference(named.name, store.version_of(named))]
    results = {}
    for one in wanted:
        try:
            artifact = store.resolve(one, family=look.family)
            results[artifact.reference] = store.verify(artifact, fast=fast)
        except UserError as error:
            if one == reference:  # a path where there is nothing, while a damaged artifact is a result
                raise
            results[str(one)] = [error.message]
    if look.json:
        print_json([{"reference": name, "problems": problems} for name, problems in results.items()])
    else:
        for name, problems in results.items():
            print("\n  ".join([f"{name}: {'damaged' if problems else 'ok'}", *map(printable, problems)]))
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
    if look.json:
        print_json({"alias": whole, "reference": artifact.reference})
    else:
        print(f"{whole} is now {artifact.reference}")
    return 0


@command.command()
@REFERENCE
@store_options
def path(look: Look, reference: str) -> int:
    """The folder of an artifact."""
    folder = str(look.store.resolve(reference, family=look.family).path)
    if look.json:
        print_json({"path": folder})
    else:
        print(folder)
    return 0


@command.command()
@REFERENCE
@store_options
def rm(look: Look, reference: str) -> int:
    """Remove a version that nothing else was made from."""
    wanted = parse_reference(reference, look.family)
    exact = Reference(wanted.name, look.store.version_of(wanted))
    dropped = remove(look.store, exact)
    if look.json:
        print_json({"removed": str(exact), "aliases": dropped})
    else:
        print(f"removed {exact}" + (f", and its aliases: {', '.join(dropped)}" if dropped else ""))
    return 0


@command.command()
@click.option("--keep", type=click.IntRange(min=1), default=1, show_default=True, help="newest versions to keep")
@click.option("--yes", is_flag=True, help="remove what is listed")
@store_options
def gc(look: Look, keep: int, yes: bool) -> int:
    """List what nothing needs, older versions and leftovers; with --yes remove it."""
    found = plan_cleanup(look.store, keep)
    size = found.size(look.store)
    versions, leftovers = [str(version) for version in found.versions], [str(path) for path in found.leftovers]
    if yes:
        clean(look.store, found)
    if look.json:
        print_json({"versions": versions, "leftovers": leftovers, "bytes": size, "removed": yes})
        return 0
    for thing in [*versions, *leftovers]:
        print(printable(f"{'removed' if yes else 'would remove'} {thing}"))
    if versions or leftovers:
        print(f"{naturalsize(size)} {'freed' if yes else 'in all; to remove it: nemotron artifacts gc --yes'}")
    else:
        print("nothing to remove")
    return 0


def other_names(store: Store, name: str) -> dict[int, list[str]]:
    """`latest` and the aliases of an artifact's versions, by version."""
    versions, aliases = store.versions(name), store.aliases(name)
    names = [(LATEST, store.latest_of(name, versions)), *aliases.items()]
    return {version: [alias for alias, number in names if number == version] for version in versions}


def _summary(artifact: Artifact, also: list[str]) -> dict[str, Any]:
    manifest = artifact.manifest
    return {
        "reference": artifact.reference,
        "aliases": also,
        "type": manifest.type,
        "created_at": manifest.created_at,
        "bytes": artifact.size,
        "files": len(manifest.files),
        "path": str(artifact.path),
        "problem": None,
    }
