"""The page `docs/cards.md`, made of the cards and of nothing else."""

from pathlib import Path

from nemotron_prove.cards.card import Card, is_edited, read_card
from nemotron_prove.cards.items import ITEMS
from nemotron_prove.cards.measured import EDITED, UNREADABLE
from nemotron_shared.atomic import write_text
from nemotron_shared.errors import UserError
from nemotron_shared.families import families

PAGE = Path("docs", "cards.md")
COMMANDS = """```text
nemotron prove cards --list                           what there is, and what is stale
nemotron prove cards                                  measure every item of every family
nemotron prove cards --family nano3 --item packing    measure one
```
"""
HEAD = (
    f"# Verification cards\n\n{COMMANDS}\n"
    "What was measured of each family, on its tiny shape and on a CPU. This page is made of the cards in `docs/cards`, "
    "which only a run writes; [Proofs](prove.md#cards) says how to read them. The figures are those of the commit "
    "beside them: `--list` shows which cards are stale because their code has changed since. `not built` means that "
    "there was no measurement of the item when the card was written.\n"
)


def write_page(root: Path) -> None:
    """Make the page anew."""
    write_text(root / PAGE, page_of(root))


def page_of(root: Path) -> str:
    """The page that the cards make."""
    cards = {family: {item: _card(root, family, item) for item in ITEMS} for family in families()}
    parts = [HEAD, "| item | " + " | ".join(cards) + " |", "|---" * (len(cards) + 1) + "|"]
    for item in ITEMS:
        states = [_state(cards[family][item]) for family in cards]
        parts.append(f"| `{item}` | " + " | ".join(states) + " |")
    parts += ["", *(f"- `{name}`: {item.title}." for name, item in ITEMS.items())]
    for family, measured in cards.items():
        known = {item: card for item, card in measured.items() if isinstance(card, Card)}
        if known:
            parts += ["", f"## {family}", "", "| item | figures | tolerance | date | commit |", "|---|---|--:|---|---|"]
            parts += [_row(item, card) for item, card in known.items()]
    return "\n".join(parts) + "\n"


def _card(root: Path, family: str, item: str) -> Card | str:
    """A card, or why there is none."""
    try:
        return read_card(root, family, item) or "not measured"
    except UserError:
        return UNREADABLE


def _state(card: Card | str) -> str:
    if isinstance(card, str):
        return card
    return EDITED if is_edited(card) else card.status


def _row(item: str, card: Card) -> str:
    figures = [f"{name}: {value:.2g}" for name, value in card.figures.items()]
    said = "; ".join([*([] if card.figures else [card.status]), *figures, *card.notes]).replace("|", "\\|")
    tolerance = "" if card.tolerance is None else f"{card.tolerance:g}"
    commit, dirty, _ = (card.commit or "").partition("-dirty")
    return f"| `{item}` | {said} | {tolerance} | {card.date} | {commit[:12]}{dirty} |"
