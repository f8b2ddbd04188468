"""Serve the chat page."""

import base64
import hashlib
import re
from importlib.resources import files

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response


async def page(request: Request) -> Response:
    """The chat page: one file, allowed to connect to this server only."""
    html = (files("nemotron_serving") / "page.html").read_text(encoding="utf-8")
    hashes = {tag: base64.b64encode(hashlib.sha256(inner.encode()).digest()).decode()
              for tag, inner in re.findall(r"<(style|script)>(.*?)</\1>", html, re.DOTALL)}  # fmt: skip
    policy = f"default-src 'none'; style-src 'sha256-{hashes['style']}'; script-src 'sha256-{hashes['script']}'; "
    policy += "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    return HTMLResponse(html, headers={"Content-Security-Policy": policy, "X-Content-Type-Options": "nosniff"})
