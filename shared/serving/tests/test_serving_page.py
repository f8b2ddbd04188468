"""The chat page in a real browser."""

import time
from collections.abc import Callable
from typing import Any

import pytest
from browser import PATIENCE, Browser, needs_browser

from nemotron_serving.api import Api
from nemotron_serving.model import Model
from nemotron_serving.server import serving

KEY = "0123456789abcdef"
pytestmark = [pytest.mark.slow, needs_browser]


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
        browser.open(url, width)
        browser.type("#text", "x" * 500 + "\ue007")
        wait_until(lambda: len(blocks(browser)) == 2 and is_idle(browser), "no answer")
        assert browser.run("return innerWidth") == width
        assert browser.too_wide() == []
