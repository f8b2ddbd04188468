"""HTML pages: one file each that needs nothing else, not even a network.

Everything that comes from data is text to the templates, which escape it. The style sheet is part of a page; its
content-security policy forbids to load anything.
"""

from collections.abc import Callable
from typing import Any

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined


def render(template: str, values: dict[str, Any], filters: dict[str, Callable[..., Any]] | None = None) -> str:
    """A whole page from one of the templates of the report and of the inspection."""
    environment = Environment(
        loader=ChoiceLoader([PackageLoader(f"nemotron_app.{name}", ".") for name in ("report", "inspect")]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= filters or {}
    return environment.get_template(template).render(values)
