"""A real browser for tests of pages, driven by chromedriver over its own protocol (W3C WebDriver)."""

import json
import shutil
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from typing import Any

import pytest

PATIENCE = 300.0
ELEMENT = "element-6066-11e4-a52e-4f735466cecf"
"""What the protocol calls the number of an element."""
FLAGS = ["headless", "no-sandbox", "disable-gpu", "no-first-run", "disable-background-networking",
         "disable-component-update", "disable-sync", "disable-quic", "disable-dev-shm-usage"]  # fmt: skip
needs_browser = pytest.mark.skipif(
    shutil.which("chromedriver") is None, reason="needs chromedriver: apt install chromium-driver"
)


class Browser:
    """One page of a browser."""

    def __init__(self, driver: str, profile: Path) -> None:
        self.driver, self.session = driver, ""
        options = {"args": [*FLAGS, f"user-data-dir={profile}"]}
        wanted = {"goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}}
        self.session = self.do("POST", "", capabilities={"alwaysMatch": wanted})["sessionId"]

    def do(self, method: str, path: str, **content: Any) -> Any:
        """A command of the protocol."""
        place = f"{self.driver}/session" + (f"/{self.session}{path}" if self.session else "")
        body = json.dumps(content).encode() if method == "POST" else None
        with urllib.request.urlopen(urllib.request.Request(place, body, method=method), timeout=PATIENCE) as answer:
            return json.load(answer)["value"]

    def run(self, script: str) -> Any:
        """What a script of the page returns."""
        return self.do("POST", "/execute/sync", script=script, args=[])

    def type(self, selector: str, text: str) -> None:
        """Press keys in an element."""
        found = self.do("POST", "/element", using="css selector", value=selector)[ELEMENT]
        self.do("POST", f"/element/{found}/value", text=text)

    def open(self, url: str, width: int = 1280, *, dark: bool = False) -> None:
        """Show a page on a screen so wide."""
        screen = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": width < 500}
        self.cdp("Emulation.setDeviceMetricsOverride", screen)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.cdp("Emulation.setEmulatedMedia", {"features": [scheme]})
        self.do("POST", "/url", url=url)

    def cdp(self, command: str, params: dict[str, Any]) -> Any:
        """A command that is Chromium's own."""
        return self.do("POST", "/goog/cdp/execute", cmd=command, params=params)

    def press(self, *keys: str) -> None:
        """Press keys wherever the focus is."""
        actions = [{"type": kind, "value": key} for key in keys for kind in ("keyDown", "keyUp")]
        self.do("POST", "/actions", actions=[{"type": "key", "id": "keyboard", "actions": actions}])

    def too_wide(self) -> list[str]:
        """What reaches over the right edge of the screen, or is wider itself than what can be seen of it."""
        right, content = "e.getBoundingClientRect().right", "(e instanceof HTMLElement ? e.scrollWidth : 0)"
        wide = f"filter(e => Math.max({right}, {content}) > innerWidth + 1)"
        return self.run(f"return [...document.querySelectorAll('body *')].{wide}.map(e => e.outerHTML.slice(0, 200))")

    def clipped(self) -> list[str]:
        """What scrolls sideways, and so hides a part; listings may, wherever they stand."""
        scrolls = "['auto', 'scroll', 'hidden'].includes(getComputedStyle(e).overflowX) && e.tagName != 'PRE'"
        wide = f"filter(e => e.scrollWidth > e.clientWidth + 1 && e.clientWidth > 1 && {scrolls})"
        return self.run(f"return [...document.querySelectorAll('body *')].{wide}.map(e => e.outerHTML.slice(0, 200))")

    def violations(self) -> list[str]:
        """What axe-core finds wrong for people who see, hear or point differently."""
        axe = resources.files("axe_playwright_python").joinpath("axe.min.js").read_text(encoding="utf-8")
        self.cdp("Runtime.evaluate", {"expression": axe})
        found = self.cdp("Runtime.evaluate", {"expression": "axe.run()", "awaitPromise": True, "returnByValue": True})
        return [
            f"{one['id']}: {one['help']}: {node['html'][:200]}"
            for one in found["result"]["value"]["violations"]
            for node in one["nodes"]
        ]

    def complaints(self) -> list[str]:
        """Errors that the browser's console shows."""
        return [line["message"] for line in self.do("POST", "/se/log", type="browser") if line["level"] == "SEVERE"]


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    words = ["chromedriver", "--port=0"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout
            port = next(line.split()[-1].rstrip(".") for line in process.stdout if "successfully on port" in line)
            try:
                found = Browser(f"http://127.0.0.1:{port}", tmp_path_factory.mktemp("profile"))
            except urllib.error.HTTPError as error:
                pytest.skip(f"no browser starts here: {json.load(error)['value']['message'].splitlines()[0]}")
            yield found
            found.do("DELETE", "")
        finally:
            process.terminate()
