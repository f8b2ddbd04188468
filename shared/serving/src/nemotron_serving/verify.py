"""`nemotron verify`: show that an export is the model that it was made from.

    nemotron verify exported                       against the model that it names, in this store
    nemotron verify my-model-BF16.gguf --against sft
    nemotron verify downloaded --alone             someone else's folder: check it alone

Writes passport.html and passport.json next to it, but not with --alone. Exit code 1 if anything differs. `nemotron
export` does the same before a folder is seen.
"""

from pathlib import Path

import click

from nemotron_app.store_options import Look, store_options
from nemotron_serving.passport.parts import DATA, PAGE
from nemotron_shared.atomic import read_json
from nemotron_shared.errors import UserError
from nemotron_shared.runtime.models.finding import find_model
from nemotron_shared.runtime.stop import end_on_sigterm


@click.command("verify", help="\b\n" + __doc__.replace("\n\n", "\n\n\b\n"))
@click.argument("export", metavar="DIR | FILE.gguf", type=click.Path(path_type=Path))
@click.option("--against", metavar="MODEL", help="the model that it was made from, if it does not say so")
@click.option("--alone", is_flag=True, help="check the folder alone, without its model")
@click.option("--run/--no-run", default=True, help="run both models on the same prompts and held-out rows (default)")
@click.option("--trust-code", is_flag=True, help="run the Python files that the model cannot do without")
@store_options
def command(look: Look, export: Path, against: str | None, alone: bool, run: bool, trust_code: bool) -> int:
    """Run the command; see the module docstring."""
    end_on_sigterm()
    if not export.exists():
        raise UserError(f"{export}: no such folder or file", "give an exported folder, or a GGUF file")
    if alone and against:
        raise UserError("--alone compares with nothing", "leave --alone or --against out")
    folder = export if export.is_dir() else export.parent
    if not alone and folder.resolve().is_relative_to(look.store.root.resolve()):
        raise UserError(f"{export}: is in the store, where nothing may be written", "export it, or add --alone")
    from nemotron_serving.passport.compare import by_itself, verified  # torch and transformers: seconds

    if alone:
        passport = by_itself(export)
    else:
        reference = against or _named(folder)
        artifact = find_model(look.store, reference, family=look.family, trusted=trust_code)
        passport = verified(look.store, export, artifact, run=run)
    lines = [f"{finding.where}: {finding.what}" for finding in passport.findings]
    if not alone:
        passport.write(folder)
    look.tell(passport.summary(), *lines, passport.line, *([] if alone else [str(folder / PAGE)]))
    return 1 if passport.findings else 0


def _named(folder: Path) -> str:
    """The model that an export's own passport names.

    Raises:
        UserError: it has none, or the model was not from a store.
    """
    file = folder / DATA
    told = read_json(file).get("source", {}) if file.is_file() else {}
    if not told.get("reference"):
        raise UserError(f"{folder}: does not say which model it was made from", "say so: --against MODEL, or --alone")
    return told["reference"]
