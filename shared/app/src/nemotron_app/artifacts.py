"""`nemotron artifacts`: look at what the stages made.

    nemotron artifacts                             every artifact
    nemotron artifacts show sft                    one: who made it, from what, how it scored
    nemotron artifacts lineage rl:v2 --mermaid     its history, to paste into a Markdown page
    nemotron artifacts verify                      hash every file again; exit code 1 if one differs
    nemotron artifacts alias sft:v3 best           from now on sft:best means version 3
    nemotron artifacts path sft:best               its folder, for use in other programs

Every command takes --json, --home DIR and --family NAME.
"""

import argparse
import json
import sys
from typing import TYPE_CHECKING, Any

from nemotron_shared.artifacts.artifact import Artifact
from nemotron_shared.artifacts.lineage import Edge, Input, edges, inputs, mermaid, tree_text
from nemotron_shared.artifacts.manifest import Manifest
from nemotron_shared.artifacts.names import DEFAULT_FAMILY, LATEST, Reference
from nemotron_shared.artifacts.store import HOME_VARIABLE, Store
from nemotron_shared.errors import UserError

if TYPE_CHECKING:
    from rich.console import Console

WIDTH_IN_A_PIPE = 200
FILES_SHOWN = 20


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
    for command in (show, lineage, alias, path):
        command.add_argument("reference", metavar="NAME[:V]")
    verify.add_argument("reference", metavar="NAME[:V]", nargs="?", help="default: everything in the store")
    verify.add_argument("--fast", action="store_true", help="compare sizes only")
    lineage.add_argument("--mermaid", action="store_true", help="a flowchart for Markdown")
    alias.add_argument("alias", metavar="ALIAS")
    return parser


def _list(store: Store, args: argparse.Namespace) -> int:
    artifacts = store.all()
    if args.json:
        _print_json([_summary(store, artifact) for artifact in artifacts])
    elif not artifacts:
        print(f"no artifacts in {store.root}; the stages put theirs there")
    else:
        _print_table(store, artifacts)
    return 0


def _show(store: Store, args: argparse.Namespace) -> int:
    artifact = _find(store, args)
    if args.json:
        _print_json(_summary(store, artifact) | {"manifest": artifact.manifest.to_json()})
    else:
        _print_details(store, artifact)
    return 0


def _lineage(store: Store, args: argparse.Namespace) -> int:
    artifact = _find(store, args)
    if args.json:
        _print_json([_step(edge) for edge in edges(store, artifact)])
    else:
        print((mermaid if args.mermaid else tree_text)(store, artifact))
    return 0


def _verify(store: Store, args: argparse.Namespace) -> int:
    if args.reference:
        artifact = _find(store, args)
        results = {artifact.reference: store.verify(artifact, fast=args.fast)}
    else:
        everything = [Reference(name, version) for name in store.names() for version in store.versions(name)]
        results = {str(reference): _problems(store, reference, args.fast) for reference in everything}
    if args.json:
        _print_json([{"reference": reference, "problems": found} for reference, found in results.items()])
    else:
        for reference, found in results.items():
            print("\n  ".join([f"{reference}: {'damaged' if found else 'ok'}", *found]))
    return 1 if any(results.values()) else 0


def _alias(store: Store, args: argparse.Namespace) -> int:
    artifact = _find(store, args)
    store.set_alias(artifact.manifest.name, artifact.manifest.version, args.alias)
    pair = {"alias": f"{artifact.manifest.name}:{args.alias}", "reference": artifact.reference}
    if args.json:
        _print_json(pair)
    else:
        print(f"{pair['alias']} is now {pair['reference']}")
    return 0


def _path(store: Store, args: argparse.Namespace) -> int:
    path = str(_find(store, args).path)
    if args.json:
        _print_json({"path": path})
    else:
        print(path)
    return 0


def _find(store: Store, args: argparse.Namespace) -> Artifact:
    return store.resolve(args.reference, family=args.family)


def _problems(store: Store, reference: Reference, fast: bool) -> list[str]:
    try:
        return store.verify(store.resolve(reference), fast=fast)
    except UserError as error:
        return [error.message]


def _summary(store: Store, artifact: Artifact) -> dict[str, Any]:
    manifest = artifact.manifest
    return {
        "reference": artifact.reference,
        "aliases": _other_names(store, artifact),
        "type": manifest.type,
        "created_at": manifest.created_at,
        "bytes": artifact.size,
        "files": len(manifest.files),
        "path": str(artifact.path),
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


def _other_names(store: Store, artifact: Artifact) -> list[str]:
    """`latest` and the aliases of this version."""
    if artifact.is_external:
        return []
    name, version = artifact.manifest.name, artifact.manifest.version
    aliases = [alias for alias, number in store.aliases(name).items() if number == version]
    return [LATEST, *aliases] if version == store.versions(name)[-1] else aliases


def _print_json(value: Any) -> None:
    print(json.dumps(value, indent=2, ensure_ascii=False))


def _console() -> "Console":
    from rich.console import Console

    width = None if sys.stdout.isatty() else WIDTH_IN_A_PIPE
    # Manifests hold free text: without markup and emoji, "[red]" and ":v:" stay what they are.
    return Console(width=width, markup=False, emoji=False, highlight=False)


def _print_table(store: Store, artifacts: list[Artifact]) -> None:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("artifact", "also", "type", "created", "files"):
        table.add_column(heading, overflow="fold")
    table.add_column("size", justify="right", no_wrap=True)
    for artifact in artifacts:
        manifest = artifact.manifest
        also = ", ".join(_other_names(store, artifact))
        count = str(len(manifest.files))
        table.add_row(artifact.reference, also, manifest.type, _when(manifest), count, _size(artifact.size))
    _console().print(table)


def _print_details(store: Store, artifact: Artifact) -> None:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for heading, text in _details(store, artifact):
        if text:
            table.add_row(heading, text)
    _console().print(table)


def _details(store: Store, artifact: Artifact) -> list[tuple[str, str]]:
    manifest, producer = artifact.manifest, artifact.manifest.producer
    return [
        ("artifact", artifact.reference),
        ("also", ", ".join(_other_names(store, artifact))),
        ("type", manifest.type),
        ("created", _when(manifest)),
        ("made by", f"{producer.stage} {producer.verb} {producer.stage_version}".strip()),
        ("command", producer.command),
        ("code", producer.git or producer.code_digest[:12]),
        ("made from", "\n".join(_input_line(found) for found in inputs(store, artifact))),
        ("metrics", _pairs(manifest.metrics)),
        ("metadata", _pairs(manifest.metadata)),
        ("fingerprint", manifest.fingerprint),
        ("digest", manifest.digest),
        ("path", str(artifact.path)),
        ("size", _size(artifact.size)),
        ("files", "\n".join(_file_lines(artifact))),
    ]


def _input_line(found: Input) -> str:
    return f"{found.role}: {found.label}" + (f"  [{found.problem}]" if found.problem else "")


def _pairs(values: dict[str, Any]) -> str:
    return "\n".join(f"{key}: {json.dumps(value, ensure_ascii=False)}" for key, value in values.items())


def _file_lines(artifact: Artifact) -> list[str]:
    files = artifact.manifest.files
    lines = [f"{name}  {_size(entry.bytes)}" for name, entry in list(files.items())[:FILES_SHOWN]]
    return lines if len(files) <= FILES_SHOWN else [*lines, f"and {len(files) - FILES_SHOWN} more"]


def _when(manifest: Manifest) -> str:
    return manifest.created_at[:16].replace("T", " ") + " UTC"


def _size(size: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} B" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"
