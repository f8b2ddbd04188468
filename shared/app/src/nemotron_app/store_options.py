"""Options of every command that inspects a store: --home, --family and --json."""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import click

from nemotron_shared.artifacts.store import HOME_VARIABLE, Store
from nemotron_shared.stages import DEFAULT_FAMILY
from nemotron_shared.system.console import tell, tell_json
from nemotron_shared.system.process import as_typed


@dataclass(frozen=True)
class Look:
    """The store, the family, or `run.name`, whose names may be abbreviated, and whether to print JSON."""

    store: Store
    family: str
    json: bool

    def tell(self, value: Any, *lines: str) -> None:
        """Print the result: `value` as JSON, or `lines` for people."""
        if self.json:
            tell_json(value)
        else:
            tell(as_typed("\n".join(lines)))


def store_options(command: Callable[..., int | None]) -> Callable[..., int | None]:
    """Add the options and pass them on as a `Look`, the first argument. Also accepted before a subcommand's name."""

    @click.option(
        "--home",
        metavar="DIR",
        help=f"the store (default: ${HOME_VARIABLE}, else .nemotron here, or at the top of the repository)",
    )
    @click.option(
        "--family", metavar="NAME", help=f"or run.name: 'sft' means NAME-sft-model (default: {DEFAULT_FAMILY})"
    )
    @click.option("--json", "as_json", is_flag=True, help="print JSON")
    @click.pass_context
    @functools.wraps(command)
    def with_look(
        ctx: click.Context, home: str | None, family: str | None, as_json: bool, **rest: object
    ) -> int | None:
        above = ctx.parent.params if ctx.parent else {}
        family = family or above.get("family") or DEFAULT_FAMILY
        look = Look(Store.open(home or above.get("home")), family, as_json or above.get("as_json", False))
        return command(look, **rest)

    return with_look
