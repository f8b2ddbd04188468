"""`nemotron prove cards`: measure every item of every family on its tiny shape, and write what came out as cards.

nemotron prove cards                                  all of them, some seconds to a minute each
nemotron prove cards --family nano3 --item packing    one
nemotron prove cards --list                           what there is; `stale`: its code has changed since;
                                                      `edited`: by hand, after the run that wrote it

A card lies in docs/cards/FAMILY/ITEM.yaml, and only a run writes it. Exit code 1 where a measurement failed.
"""

import subprocess
import sys
import tempfile
import time
from contextlib import redirect_stdout
from pathlib import Path

import click

from nemotron_app.plain import table_lines
from nemotron_prove.cards.card import (
    FOLDER,
    ROOT,
    Card,
    code_digest,
    command_of,
    is_edited,
    is_stale,
    read_card,
    write_card,
)
from nemotron_prove.cards.items import ITEMS, Item
from nemotron_prove.cards.measured import EDITED, FAILED, UNREADABLE, CannotRun
from nemotron_prove.cards.page import PAGE, write_page
from nemotron_shared.errors import UserError, did_you_mean
from nemotron_shared.families import families
from nemotron_shared.runtime.console import say, tell, tell_json
from nemotron_shared.runtime.machine import hardware
from nemotron_shared.runtime.provenance import git_commit

STALE, NONE = "stale", "not measured"


@click.command("cards", help="\b\n" + __doc__.replace("\n\n", "\n\n\b\n"))
@click.option("--family", "wanted_families", multiple=True, metavar="NAME", help="only of this family")
@click.option("--item", "wanted_items", multiple=True, metavar="NAME", help="only this item")
@click.option("--list", "only_list", is_flag=True, help="show the cards that there are")
@click.option("--root", type=click.Path(path_type=Path), default=ROOT, hidden=True, help="the repository")
@click.option("--json", "as_json", is_flag=True, help="print JSON")
def command(
    wanted_families: tuple[str, ...], wanted_items: tuple[str, ...], only_list: bool, root: Path, as_json: bool
) -> int:
    """See the head of this module."""
    if not (root / "docs").is_dir():
        what = f"{root}: cards lie in {FOLDER} of a clone of the repository, and this is none"
        raise UserError(what, "run it in a clone")
    chosen = chosen_of(wanted_families, [*families()], "family")
    items = {name: ITEMS[name] for name in chosen_of(wanted_items, [*ITEMS], "item")}
    failed = False
    if not only_list:
        for family in chosen:
            for name, item in items.items():
                card = measured(family, name, item)
                write_card(root, family, name, card)
                write_page(root)  # at once: a run that is stopped leaves page and cards that agree
                say(f"[{family} {name}] {card.status}{told(card)}")
                failed |= card.status == FAILED
    rows = [[family, name, status_of(root, family, name, item)] for family in chosen for name, item in items.items()]
    if as_json:
        tell_json([dict(zip(("family", "item", "status"), row, strict=True)) for row in rows])
    elif only_list:
        tell("\n".join(table_lines(("family", "item", "status"), rows)))
    return 1 if failed else 0


def chosen_of(wanted: tuple[str, ...], known: list[str], what: str) -> list[str]:
    """What was asked for, or all.

    Raises:
        UserError: one that there is not.
    """
    for name in wanted:
        if name not in known:
            raise UserError(f"there is no {what} '{name}'", did_you_mean(name, known, f"there are: {', '.join(known)}"))
    return list(wanted) or known


def measured(family: str, name: str, item: Item) -> Card:
    """Measure one item now. An error of the program itself is a failure, and not the end of the run."""
    figures: dict[str, float] = {}
    tolerance, notes = None, []
    # what commands print here is none of ours
    with tempfile.TemporaryDirectory(prefix="nemotron-card-") as folder, redirect_stdout(sys.stderr):
        try:
            found = item.measure(family, Path(folder))
            status, figures, tolerance, notes = found.status, found.figures, found.tolerance, found.notes
        except CannotRun as error:
            status, notes = error.status, [str(error)]
        except Exception as error:  # whatever it is, the other items can be measured
            what = error.message if isinstance(error, UserError) else f"{type(error).__name__}: {error}"
            status, notes = FAILED, [what.replace(folder, "")]
    here = hardware()
    return Card(
        status=status,
        command=command_of(family, name),
        commit=commit_of_code(),
        date=time.strftime("%Y-%m-%d", time.gmtime()),
        machine=f"{here['processor']}, {here['cores']} cores",
        code=code_digest(family, item),
        figures={key: float(value) for key, value in figures.items()},
        tolerance=tolerance,
        notes=notes,
    )


def commit_of_code() -> str | None:
    """The commit, with `-dirty` where more than the cards themselves has changed since: each run writes some."""
    commit = git_commit(ROOT)
    if commit is None or not commit.endswith("-dirty"):
        return commit
    own = [f":!{path}" for path in (FOLDER, PAGE)]
    changed = ["git", "-C", str(ROOT), "status", "--porcelain", "--untracked-files=no", "--", ".", *own]
    done = subprocess.run(changed, capture_output=True, text=True, check=False)
    return commit if done.returncode or done.stdout else commit.removesuffix("-dirty")


def status_of(root: Path, family: str, name: str, item: Item) -> str:
    """The card's status; `stale` where its code is another one now, `edited` where the card itself is."""
    try:
        card = read_card(root, family, name)
    except UserError:
        return UNREADABLE
    if card is None:
        return NONE
    if is_edited(card):
        return EDITED
    return STALE if is_stale(card, family, item) else card.status


def told(card: Card) -> str:
    """The figures and notes in a line."""
    figures = [f"{name} {value:.2g}" for name, value in card.figures.items()]
    limit = [f"at most {card.tolerance:g} is allowed"] if card.tolerance is not None else []
    return "".join(f"; {words}" for words in [*figures, *limit, *card.notes])
