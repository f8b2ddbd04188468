"""The chat page in a real browser, driven by chromedriver over its own protocol (W3C WebDriver)."""

import json
import shutil
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from nemotron_serving.api import Api
from nemotron_serving.model import Model
from nemotron_serving.server import serving

PATIENCE = 300.0
KEY = "0123456789abcdef"
ELEMENT = "element-6066-11e4-a52e-4f735466cecf"
"""What the protocol calls the number of an element."""
FLAGS = ["headless", "no-sandbox", "disable-gpu", "no-first-run", "disable-background-networking",
         "disable-component-update", "disable-sync", "disable-quic", "disable-dev-shm-usage"]  # fmt: skip
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("chromedriver") is None, reason="needs chromedriver: apt install chromium-driver"),
]


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


def wait_until(holds: Callable[[], Any], what: str) -> Any:
    end = time.monotonic() + PATIENCE
    while not (found := holds()):
        assert time.monotonic() < end, what
        time.sleep(0.05)
    return found


def blocks(browser: Browser) -> list[list[str]]:
    """What the page shows: pairs of a kind and its text."""
    return browser.run("return [...document.querySelectorAll('#talk > div')].map(b => [b.className, b.textContent])")


def is_idle(browser: Browser) -> bool:
    return browser.run("return document.querySelector('#send').textContent") == "Send"


def test_a_person_talks_to_the_model(browser: Browser, model: Model) -> None:
    with serving(Api(model, ("small",), 12).app(None)) as url:
        browser.do("POST", "/url", url=url)
        wait_until(lambda: browser.run("return document.title") == "small", "the page does not name the model")
        browser.type("#text", "<b>Hello</b>\ue007")  # with the Enter key
        wait_until(lambda: len(blocks(browser)) == 2 and is_idle(browser) and blocks(browser)[1][1], "no answer")
        (asked, _) = blocks(browser)
        assert asked == ["user", "<b>Hello</b>"]
        assert browser.run("return document.querySelectorAll('#talk b').length") == 0
        browser.type("#text", "And then?")
        browser.type("#send", "\ue007")
        wait_until(lambda: len(blocks(browser)) == 4 and is_idle(browser), "no second answer")
        assert [kind for kind, _ in blocks(browser)] == ["user", "assistant"] * 2
        browser.type("#reset", "\ue007")
        assert blocks(browser) == []
        assert browser.complaints() == []


def test_a_long_answer_is_stopped(browser: Browser, never_ends: Model) -> None:
    with serving(Api(never_ends, ("small",), 2000).app(None)) as url:
        browser.do("POST", "/url", url=url)
        browser.type("#text", "Hello\ue007")
        wait_until(lambda: len(blocks(browser)) == 2 and blocks(browser)[1][1], "nothing is streamed")
        assert not is_idle(browser)
        browser.type("#text", "\ue00c")  # Escape
        wait_until(lambda: is_idle(browser), "it goes on")
        assert blocks(browser)[-1] == ["error", "stopped"]
        wait_until(lambda: never_ends.batch.load == (0, 0), "the model goes on")


def test_a_server_with_a_key_asks_for_it(browser: Browser, model: Model) -> None:
    with serving(Api(model, ("small",), 12).app(KEY)) as url:
        browser.do("POST", "/url", url=url)
        wait_until(lambda: not browser.run("return document.querySelector('#keyed').hidden"), "no field for the key")
        browser.type("#text", "Hello\ue007")
        wait_until(lambda: [kind for kind, _ in blocks(browser)][-1:] == ["error"] and is_idle(browser), "no error")
        browser.type("#key", f"{KEY}\ue007")
        browser.type("#text", "Hello again\ue007")
        wait_until(lambda: is_idle(browser) and blocks(browser)[-1][0] == "assistant", "no answer with the key")


@pytest.mark.parametrize("width", [390, 768, 1280])
def test_nothing_is_wider_than_the_screen(browser: Browser, model: Model, width: int) -> None:
    with serving(Api(model, ("small",), 12).app(None)) as url:
        screen = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": width < 500}
        browser.do("POST", "/goog/cdp/execute", cmd="Emulation.setDeviceMetricsOverride", params=screen)
        browser.do("POST", "/url", url=url)
        browser.type("#text", "x" * 500 + "\ue007")
        wait_until(lambda: len(blocks(browser)) == 2 and is_idle(browser), "no answer")
        assert browser.run("return innerWidth") == width
        wide = "filter(e => e.getBoundingClientRect().right > innerWidth + 1).map(e => e.tagName)"
        assert browser.run(f"return [...document.querySelectorAll('body *')].{wide}") == []
