"""`nemotron verify`: show that an export is the model that it was made from.

    nemotron verify exported                       against the model that it names, in this store
    nemotron verify my-model-BF16.gguf --against sft
    nemotron verify downloaded --alone             someone else's folder: check it alone
    nemotron verify trained --base hf://org/name   the same, and whether it was trained from this model

Writes passport.html and passport.json next to it; with --alone, --base, or another model than the export names, only
where --page says. Exit code 1 if anything differs. `nemotron export` does the same before a folder is seen.
"""

from pathlib import Path

import click

from nemotron_app.store_options import Look, store_options
from nemotron_serving.passport.parts import DATA, PAGE
from nemotron_shared.models.finding import find_model
from nemotron_shared.models.folder import settings_in
from nemotron_shared.system.atomic import require_writable
from nemotron_shared.system.console import finding_lines
from nemotron_shared.system.errors import UserError
from nemotron_shared.system.stop import end_on_sigterm


@click.command("verify", help="\b\n" + __doc__.replace("\n\n", "\n\n\b\n"))
@click.argument("export", metavar="DIR | FILE.gguf", type=click.Path(path_type=Path))
@click.option("--against", metavar="MODEL", help="the model that it was made from, if it does not say so")
@click.option("--alone", is_flag=True, help="check the folder alone, without its model")
@click.option("--base", metavar="MODEL", help="check a folder that another program trained from this model")
@click.option("--page", metavar="DIR", type=click.Path(path_type=Path), help="where the page and its data are written")
@click.option("--run/--no-run", default=True, help="run both models on the same prompts and held-out rows (default)")
@click.option("--trust-code", is_flag=True, help="run the Python files that the model cannot do without")
@store_options
def command(
    look: Look, export: Path, against: str | None, alone: bool, base: str | None, page: Path | None, run: bool,
    trust_code: bool,
) -> int:  # fmt: skip
    """Run the command; see the module docstring."""
    end_on_sigterm()
    if not export.exists():
        raise UserError(f"{export}: no such folder or file", "give an exported folder, or a GGUF file")
    if sum((alone, against is not None, base is not None)) > 1:
        raise UserError("--alone, --against and --base exclude each other", "give one of them")
    folder = export if export.is_dir() else export.parent
    from_elsewhere = alone or base is not None
    into = page or (None if from_elsewhere else folder)
    if into and into.resolve().is_relative_to(look.store.root.resolve()):
        raise UserError(f"{into}: is in the store, where nothing may be written", "export it, or add --alone")
    if page and page.exists() and not page.is_dir():
        raise UserError(f"--page {page}: not a folder", "give the name of a new folder")
    if into:
        require_writable(into)
    named = None if from_elsewhere else _named(folder)
    reference = None if alone else base or against or named
    if reference is None and not alone:
        raise UserError(
            f"{folder}: does not say which model it was made from",
            "say so: --against MODEL; or --alone, or --base MODEL",
        )
    artifact = None if reference is None else find_model(look.store, reference, family=look.family, trusted=trust_code)
    if artifact and named not in (None, artifact.reference):
        into = page  # it stays the passport of the model that it names
    from nemotron_serving.passport.alone import by_itself  # torch and transformers: seconds
    from nemotron_serving.passport.compare import verified

    if from_elsewhere or artifact is None:
        passport = by_itself(export, artifact.path if artifact else None)
    else:
        passport = verified(look.store, export, artifact, run=run)
    lines = [line for one in passport.findings for line in finding_lines(one, f"{one.key}: ")]
    if into:
        into.mkdir(parents=True, exist_ok=True)
        passport.write(into)
    look.tell(passport.summary(), *lines, passport.line, *([str(into / PAGE)] if into else []))
    return 1 if passport.findings else 0


def _named(folder: Path) -> str | None:
    """The model that an export's own passport names; None if it has none, or the model was not from a store."""
    file = folder / DATA
    told = settings_in(file).get("source") if file.is_file() else None
    reference = told.get("reference") if isinstance(told, dict) else None
    return reference if isinstance(reference, str) and reference else None
