"""`nemotron report`: a report of the results so far, of one evaluation, of trainings compared, or of running ones.

nemotron report
nemotron report --family nano3 --out nano3.html --json
nemotron report super3-eval-results:v1
nemotron report --compare sft-model:v1 sft-model:v2
nemotron report --live
"""

from pathlib import Path

import click

from nemotron_app.report import overlay
from nemotron_app.report.build import build_report
from nemotron_app.report.live import watch
from nemotron_app.report.trained import Trained, training_named
from nemotron_app.rich_table import open_console, print_table, text_of
from nemotron_app.store_options import Look, store_options
from nemotron_shared.artifacts import Artifact
from nemotron_shared.artifacts.names import is_path, parse_reference
from nemotron_shared.atomic import output_file, write_text
from nemotron_shared.errors import UserError
from nemotron_shared.families import families
from nemotron_shared.stages import RESULTS

FOLDED = 16
"""Length of names and settings that stay on one line of a narrow terminal; figures are never longer."""


@click.command("report")
@click.argument("names", nargs=-1, metavar="[NAME|FOLDER]...")
@click.option("--compare", is_flag=True, help="lay the trainings named beside each other: models or runs, two or more")
@click.option("--live", is_flag=True, help="follow what runs now, here and on a page that renews itself")
@click.option("--out", metavar="FILE", help="the page (default: reports/FAMILY.html in the store, or NAME-vN.html)")
@store_options
def command(look: Look, names: tuple[str, ...], compare: bool, live: bool, out: str | None) -> int:
    """Write an HTML page about the results so far, one evaluation, trainings compared, or running trainings."""
    path = None if out is None else output_file(out)
    if compare and live:
        raise UserError("--compare and --live are two different pages", "give one of them")
    if compare:
        return _compare(look, names, path or look.store.home / "reports" / "compared.html")
    evaluation = _evaluation(look, names) if names else None
    if evaluation is not None and live:
        raise UserError(f"--live follows what runs, and {evaluation.reference} is finished", "leave out one of them")
    if live:
        if look.json:
            raise UserError("--live is for people", "programs read metrics.jsonl of: nemotron runs --json")
        return watch(look.store, path or look.store.home / "reports" / "live.html")
    family = look.family if evaluation is None else evaluation.manifest.name.removesuffix(f"-{RESULTS}")
    build_report(look.store, family, path, results=evaluation).print(as_json=look.json)
    return 0


def _evaluation(look: Look, names: tuple[str, ...]) -> Artifact:
    """The evaluation that a single name refers to.

    Raises:
        UserError: unknown name, or the names refer to something else.
    """
    try:
        named = parse_reference(names[0], look.family).name
    except UserError:
        named = ""
    if len(names) > 1 or not named.endswith(f"-{RESULTS}"):
        raise _no_name_wanted(look, names)
    return look.store.resolve(names[0], family=look.family)


def _no_name_wanted(look: Look, names: tuple[str, ...]) -> UserError:
    """The error for names that are not evaluations; raises `UserError` if one of them does not exist."""
    given = " ".join(names)
    if names[0] in families():
        return UserError(f"'{given}' is a model family", f"its report: nemotron report --family {names[0]}")
    if len(names) == 1 and not _is_folder_or_run(look, given):
        look.store.resolve(given, family=look.family)
    beside = "to lay it beside another training, name both after --compare"
    if len(names) > 1:
        beside = f"to lay them beside each other: nemotron report --compare {given}"
    evaluation = f"{look.family}-{RESULTS}"
    made = look.store.versions(evaluation)
    about_one = f"\n  one evaluation: nemotron report {evaluation}:v{made[-1]}" if made else ""
    return UserError(
        f"the report is about all stages together, and '{given}' names a part",
        f"{beside}\n  the whole: nemotron report{about_one}",
    )


def _is_folder_or_run(look: Look, name: str) -> bool:
    return is_path(name) or Path(name).is_dir() or (look.store.home / "runs" / name).is_dir()


def _compare(look: Look, names: tuple[str, ...], page: Path) -> int:
    if len(names) < 2:
        raise UserError("--compare needs two trainings or more", "see what there is: nemotron artifacts list")
    trainings = _trainings(look, names)
    title = " against ".join(one.name for one in trainings)
    write_text(page, overlay.render(trainings, title, "Trainings compared"))
    notes = overlay.notes(trainings)
    if look.json:
        settings = overlay.differing(trainings)
        look.tell({"page": str(page), "trainings": overlay.plain(trainings), "settings": settings, "notes": notes})
        return 0
    console = open_console()
    print_table(console, overlay.numbers(trainings), folded=FOLDED)
    if differing := overlay.differing_settings(trainings):
        console.print()
        print_table(console, differing, folded=FOLDED)
    for note in notes:
        console.print(text_of(console, f"note: {note}"), soft_wrap=True)
    console.print(text_of(console, f"page: {page}"), soft_wrap=True)
    return 0


def _trainings(look: Look, names: tuple[str, ...]) -> list[Trained]:
    """The trainings that the names refer to, which must be distinct."""
    found: dict[str, Trained] = {}
    for name in names:
        one = training_named(look.store, name, look.family)
        if one.identity in found:
            raise UserError(f"'{name}' is the same training as {found[one.identity].name}", "name each one once")
        found[one.identity] = one
    return list(found.values())
