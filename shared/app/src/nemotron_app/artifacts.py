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

import argparse
from collections.abc import Sequence
from typing import Any

from nemotron_app.artifact_details import print_artifact, when
from nemotron_app.plain import print_json, print_table, size_text
from nemotron_shared.artifacts.artifact import Artifact
from nemotron_shared.artifacts.housekeeping import clean, plan_cleanup, remove
from nemotron_shared.artifacts.lineage import Edge, edges, mermaid, tree_text
from nemotron_shared.artifacts.manifest import OlderLayout
from nemotron_shared.artifacts.names import DEFAULT_FAMILY, LATEST, Reference, is_path, parse_reference
from nemotron_shared.artifacts.store import HOME_VARIABLE, Store
from nemotron_shared.errors import UserError, printable


def main(argv: list[str]) -> int:
    """Run one of the commands above. `argv` is what follows `nemotron artifacts`; returns the exit code."""
    defaults = argparse.Namespace(home=None, family=DEFAULT_FAMILY, json=False)
    args = _parser().parse_args(argv, defaults)
    return args.run(Store.open(args.home), args)


def _parser() -> argparse.ArgumentParser:
    # SUPPRESS: a flag left out after the command must not undo the same flag given before it.
    common = argparse.ArgumentParser(add_help=False, argument_default=argparse.SUPPRESS)
    common.add_argument("--home", metavar="DIR", help=f"the store (default: ${HOME_VARIABLE}, else ./.nemotron)")
    common.add_argument("--family", metavar="NAME", help=f"what 'sft' is short for (default: {DEFAULT_FAMILY})")
    common.add_argument("--json", action="store_true", help="print JSON")
    parser = argparse.ArgumentParser(
        prog="nemotron artifacts", parents=[common], description="Look at what the stages made."
    )
    parser.set_defaults(run=_list)
    commands = parser.add_subparsers(metavar="COMMAND")

    def add(name: str, run: Any, text: str) -> argparse.ArgumentParser:
        command = commands.add_parser(name, parents=[common], help=text, description=text)
        command.set_defaults(run=run)
        return command

    add("list", _list, "every artifact (the default)")
    show = add("show", _show, "who made an artifact, from what, and how it scored")
    lineage = add("lineage", _lineage, "its history up to the raw sources")
    verify = add("verify", _verify, "hash the files again; exit code 1 if one differs")
    alias = add("alias", _alias, "give a version a name of your choice")
    path = add("path", _path, "the folder of an artifact")
    rm = add("rm", _rm, "remove a version that nothing else was made from")
    gc = add("gc", _gc, "list what nothing needs: older versions and leftovers; with --yes remove it")
    for command in (show, lineage, alias, path, rm):
        command.add_argument("reference", metavar="NAME[:V]")
    verify.add_argument("reference", metavar="NAME[:V]", nargs="?", help="default: everything in the store")
    verify.add_argument("--fast", action="store_true", help="compare sizes only")
    lineage.add_argument("--mermaid", action="store_true", help="a flowchart for Markdown")
    alias.add_argument("alias", metavar="ALIAS")
    gc.add_argument("--keep", type=_positive, default=1, metavar="N", help="newest versions to keep (default: 1)")
    gc.add_argument("--yes", action="store_true", help="remove what is listed")
    return parser


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise ValueError(text)
    return number


def _list(store: Store, args: argparse.Namespace) -> int:
    listed = []
    for name, versions in store.shelves().items():
        other_names = _OtherNames(store, name, versions)
        for version in versions:
            path, also = str(store.root / name / f"v{version}"), other_names.of(version)
            try:
                listed.append(_summary(store.load(name, version), also))
            except UserError as error:  # one that cannot be read must not hide the others
                problem = "older layout" if isinstance(error, OlderLayout) else f"damaged: {error.message}"
                listed.append({"reference": f"{name}:v{version}", "aliases": also, "path": path, "problem": problem})
    if args.json:
        print_json(listed)
    elif not listed:
        print(f"no artifacts in {store.root}; the stages put theirs there")
    else:
        print_table(
            ("artifact", "also", "type", "created", "files", "size"), [_row(entry) for entry in listed], ("size",)
        )
    return 0


def _row(entry: dict[str, Any]) -> list[str]:
    names = [entry["reference"], ", ".join(entry["aliases"])]
    if entry["problem"]:
        return [*names, entry["problem"], "", "", ""]
    return [*names, entry["type"], when(entry["created_at"]), str(entry["files"]), size_text(entry["bytes"])]


def _show(store: Store, args: argparse.Namespace) -> int:
    artifact = _find(store, args)
    if args.json:
        print_json(_summary(artifact, _other_names(store, artifact)) | {"manifest": artifact.manifest.to_json()})
    else:
        print_artifact(store, artifact, _other_names(store, artifact))
    return 0


def _lineage(store: Store, args: argparse.Namespace) -> int:
    artifact = _find(store, args)
    if args.json:
        print_json([_step(edge) for edge in edges(store, artifact)])
    else:
        print((mermaid if args.mermaid else tree_text)(store, artifact))
    return 0


def _verify(store: Store, args: argparse.Namespace) -> int:
    if args.reference:
        reference = parse_reference(args.reference, args.family) if not is_path(args.reference) else None
        if reference:
            exact = Reference(reference.name, store.version_of(reference))
            results = {str(exact): _problems(store, exact, args.fast)}
        else:
            artifact = _find(store, args)
            results = {artifact.reference: store.verify(artifact, fast=args.fast)}
    else:
        everything = [Reference(name, version) for name, versions in store.shelves().items() for version in versions]
        results = {str(reference): _problems(store, reference, args.fast) for reference in everything}
    if args.json:
        print_json([{"reference": reference, "problems": found} for reference, found in results.items()])
    else:
        for reference, found in results.items():
            print("\n  ".join([f"{reference}: {'damaged' if found else 'ok'}", *map(printable, found)]))
    return 1 if any(results.values()) else 0


def _alias(store: Store, args: argparse.Namespace) -> int:
    artifact = _find(store, args)
    store.set_alias(artifact.manifest.name, artifact.manifest.version, args.alias)
    pair = {"alias": f"{artifact.manifest.name}:{args.alias}", "reference": artifact.reference}
    if args.json:
        print_json(pair)
    else:
        print(f"{pair['alias']} is now {pair['reference']}")
    return 0


def _path(store: Store, args: argparse.Namespace) -> int:
    path = str(_find(store, args).path)
    if args.json:
        print_json({"path": path})
    else:
        print(path)
    return 0


def _rm(store: Store, args: argparse.Namespace) -> int:
    wanted = parse_reference(args.reference, args.family)
    reference = Reference(wanted.name, store.version_of(wanted))
    dropped = remove(store, reference)
    if args.json:
        print_json({"removed": str(reference), "aliases": dropped})
    else:
        print(f"removed {reference}" + (f", and its aliases: {', '.join(dropped)}" if dropped else ""))
    return 0


def _gc(store: Store, args: argparse.Namespace) -> int:
    found = plan_cleanup(store, args.keep)
    size = found.size(store)
    if args.yes:
        clean(store, found)
    if args.json:
        versions, leftovers = [str(version) for version in found.versions], [str(path) for path in found.leftovers]
        print_json({"versions": versions, "leftovers": leftovers, "bytes": size, "removed": args.yes})
        return 0
    for thing in [*found.versions, *found.leftovers]:
        print(printable(f"{'removed' if args.yes else 'would remove'} {thing}"))
    if not found.versions and not found.leftovers:
        print("nothing to remove")
    else:
        print(f"{size_text(size)} {'freed' if args.yes else 'in all; to remove it: nemotron artifacts gc --yes'}")
    return 0


def _find(store: Store, args: argparse.Namespace) -> Artifact:
    return store.resolve(args.reference, family=args.family)


def _problems(store: Store, reference: Reference, fast: bool) -> list[str]:
    try:
        return store.verify(store.resolve(reference), fast=fast)
    except UserError as error:
        return [error.message]


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


def _step(edge: Edge) -> dict[str, Any]:
    found = edge.input
    return {
        "input": found.label,
        "digest": found.digest,
        "role": found.role,
        "problem": found.problem,
        "made": edge.made,
    }


class _OtherNames:
    """`latest` and the aliases, by version of one name."""

    def __init__(self, store: Store, name: str, versions: Sequence[int]) -> None:
        self.aliases = store.aliases(name)
        self.latest = store.latest_of(name, versions)

    def of(self, version: int) -> list[str]:
        aliases = [alias for alias, number in self.aliases.items() if number == version]
        return [LATEST, *aliases] if version == self.latest else aliases


def _other_names(store: Store, artifact: Artifact) -> list[str]:
    if artifact.is_external:
        return []
    name = artifact.manifest.name
    return _OtherNames(store, name, store.versions(name)).of(artifact.manifest.version)
