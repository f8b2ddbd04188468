"""A line while nothing else is said, and bars."""

import time

import pytest

from nemotron_shared.system.console import BAR, bar, doing, say
from nemotron_shared.tracking import progress as module
from nemotron_shared.tracking.progress import heartbeat


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SECONDS", 0.2)
    monkeypatch.setattr(module, "LOOKS", 0.01)
    monkeypatch.setattr(module, "YOUNG_SECONDS", 0.1)


def test_silence_is_broken_with_what_is_being_done(capsys: pytest.CaptureFixture[str]) -> None:
    say("a line")
    with heartbeat("super3-sft-model"):
        doing("importing libraries")
        time.sleep(1)
        doing("step 1/9")
        time.sleep(1)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "a line"
    assert lines[1].startswith("[super3-sft-model] importing libraries, 0:0")
    assert lines[-1].startswith("[super3-sft-model] step 1/9, 0:0")
    assert len(lines) >= 4


def test_nothing_is_added_while_lines_come(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SECONDS", 30.0)
    with heartbeat("one"):
        say("a line")
        time.sleep(0.1)
    assert capsys.readouterr().err == "a line\n"


def test_what_has_just_begun_has_no_time(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "YOUNG_SECONDS", 600.0)
    with heartbeat("one"):
        doing("step 96/120")
        time.sleep(0.5)
    assert set(capsys.readouterr().err.splitlines()) == {"[one] step 96/120"}


def test_it_ends_with_the_work(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(KeyError), heartbeat("one"):
        raise KeyError
    capsys.readouterr()
    time.sleep(0.5)
    assert capsys.readouterr().err == ""


def test_a_long_log_gets_few(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LATER", 0.0)
    with heartbeat("one"):
        time.sleep(1)
    assert capsys.readouterr().err == ""


def test_other_ranks_are_silent(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    with heartbeat("one"):
        time.sleep(0.5)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(("share", "full"), [(0, 0), (0.5, BAR // 2), (1, BAR), (7, BAR), (-1, 0)])
def test_a_bar_is_as_full_as_its_share(share: float, full: int) -> None:
    assert bar(share) == "━" * full + "─" * (BAR - full)
