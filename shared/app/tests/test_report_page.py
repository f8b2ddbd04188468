"""The report and the inspection in a real browser, as people with a phone, a keyboard or a screen reader have them."""

from pathlib import Path

import pytest
from browser import Browser, needs_browser
from test_report import FAMILY, build_episodes, build_pipeline
from test_report_overlay import working

from nemotron_app.inspect.measure import inspect_data
from nemotron_app.inspect.show import render
from nemotron_app.report import compare
from nemotron_app.report.command import build_report
from nemotron_app.report.compare import training_in
from nemotron_shared.artifacts import Store

pytestmark = [pytest.mark.slow, needs_browser]
TAB, RIGHT, HOME, ESCAPE, ENTER = "\ue004", "\ue014", "\ue011", "\ue00c", "\ue007"
PAGES = ["report", "compared", "inspection", "episodes"]
FOCUS = "return document.activeElement"


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The address of each page."""
    store = Store.open(str(tmp_path_factory.mktemp("store")))
    made = build_pipeline(store)
    found = {"report": build_report(store, FAMILY).html_path}
    names = [f"super3-sft-model-{letter * 12}" for letter in "abcdefg"]
    trainings = [training_in(working(store, name, 30, lr=0.001 * at, key="x" * 50)) for at, name in enumerate(names)]
    found["compared"] = found["report"].with_name("compared.html")
    found["compared"].write_text(compare.render(trainings, "Trainings compared"), encoding="utf-8")
    inspection = found["report"].with_name("inspection.html")
    inspection.write_text(render(inspect_data(made["rl-data"].reference, store), 200), encoding="utf-8")
    episodes = Store.open(str(tmp_path_factory.mktemp("episodes")))
    build_episodes(episodes)
    found["episodes"] = build_report(episodes, FAMILY).html_path
    return {name: path.as_uri() for name, path in (found | {"inspection": inspection}).items()}


@pytest.mark.parametrize("page", PAGES)
@pytest.mark.parametrize("width", [390, 768, 1280])
def test_nothing_is_wider_than_the_screen(browser: Browser, pages: dict[str, str], page: str, width: int) -> None:
    browser.open(pages[page], width)
    assert browser.run("return innerWidth") == width
    assert browser.too_wide() == []
    assert browser.clipped() == []


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("page", PAGES)
@pytest.mark.parametrize("width", [390, 1280])
def test_everyone_can_use_it(browser: Browser, pages: dict[str, str], page: str, width: int, dark: bool) -> None:
    browser.open(pages[page], width, dark=dark)
    assert browser.violations() == []
    assert browser.complaints() == []


def test_a_chart_reads_its_values_to_who_points_at_it(browser: Browser, pages: dict[str, str]) -> None:
    browser.open(pages["report"])
    charts = browser.run("return document.querySelectorAll('.chart').length")
    assert charts > 10
    for number in range(charts):
        said = browser.run(
            f"const chart = document.querySelectorAll('.chart')[{number}], box = chart.getBoundingClientRect();"
            "const at = {clientX: box.left + 0.7 * box.width, clientY: box.top + 20, bubbles: true};"
            "chart.dispatchEvent(new PointerEvent('pointermove', at));"
            "return chart.querySelector('output').textContent"
        )
        assert said.startswith("step ") or said.split()[0] in {"tokens", "characters", "%"}, said


def test_a_keyboard_is_enough(browser: Browser, pages: dict[str, str]) -> None:
    browser.open(pages["report"])
    browser.press(TAB)
    assert browser.run(f"{FOCUS}.textContent") == "Results"
    browser.press(ENTER)
    assert browser.run("return location.hash") == "#results"
    for _ in range(40):
        browser.press(TAB)
        if browser.run(f"{FOCUS}.className") == "chart":
            break
    browser.press(HOME, RIGHT)
    assert browser.run(f"{FOCUS}.querySelector('output').textContent").startswith("step 2: as logged ")
    assert browser.run(f"{FOCUS}.querySelector('.cursor').classList.contains('on')")
    browser.press(ESCAPE)
    assert browser.run(f"{FOCUS}.querySelector('output').textContent") == ""


def test_the_phone_has_a_drawing_of_its_own(browser: Browser, pages: dict[str, str]) -> None:
    drawings = "[...document.querySelectorAll('figure.large .chart svg')]"
    shown = f"return {drawings}.filter(e => e.clientWidth).length"
    counts = []
    for width in (390, 1280):
        browser.open(pages["report"], width)
        counts.append(browser.run(shown))
    assert counts[0] == counts[1] > 0


def test_the_pages_need_no_file_beside_them(pages: dict[str, str]) -> None:
    assert {path.suffix for path in Path(pages["report"].removeprefix("file://")).parent.iterdir()} == {".html"}
