"""HTML pages: one file each that needs nothing else, not even a network.

Everything that comes from data is text to the templates, which escape it. The style sheet is part of a page; its
content-security policy forbids to load anything, and to run any script but ours, which it knows by its digest.
"""

import base64
import hashlib
from collections.abc import Callable
from importlib import resources
from typing import Any

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined
from markupsafe import Markup


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
    return environment.get_template(template).render({"renew": None, **values, "script": script()})


def script() -> dict[str, str]:
    """The script that reads charts out: its `text`, and its `digest` as a content-security policy names it."""
    text = resources.files("nemotron_app.report").joinpath("charts.js").read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return {"text": Markup(text), "digest": f"sha256-{digest}"}
