"""Self-contained HTML pages: one file each, without network access.

Templates escape all text that comes from data. The style sheet is inlined, and the content-security policy forbids
loading anything or running any script except ours, which it identifies by digest.
"""

import base64
import hashlib
from collections.abc import Callable
from importlib import resources
from typing import Any

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined
from markupsafe import Markup


def render(template: str, values: dict[str, Any], filters: dict[str, Callable[..., Any]] | None = None) -> str:
    """Render a page from one of the templates of `report` or `inspect`."""
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
    """The script that shows chart values: its `text`, and its `digest` for the content-security policy."""
    text = resources.files("nemotron_app.report").joinpath("charts.js").read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return {"text": Markup(text), "digest": f"sha256-{digest}"}
