"""CI runs every lane, also after one that failed, and its last lines say which."""

import importlib.util
import re
import sys
from types import ModuleType

import pytest
from support import ROOT


@pytest.fixture
def lanes(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    specification = importlib.util.spec_from_file_location("ci_lanes", ROOT / "ci" / "lanes.py")
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    monkeypatch.setitem(sys.modules, "ci_lanes", module)
    specification.loader.exec_module(module)
    monkeypatch.delenv(module.CHECKOUTS, raising=False)
    return module


def says(text: str, code: int) -> list[str]:
    return [sys.executable, "-c", f"print({text!r}); raise SystemExit({code})"]


RED = "CPU time: 2.0 minutes\n== 1 failed, 32 passed, 38 warnings, 2 errors in 493.88s (0:08:13) =="
GREEN = "=== 5 passed, 2 skipped, 7 deselected in 1.20s ==="


def test_a_lane_after_a_red_one_runs_and_the_table_names_the_red_one(
    lanes: ModuleType, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(lanes, "LANES", {"one": says(RED, 1), "two": says(GREEN, 0), "nemo_rl": says("no", 1)})
    assert lanes.main([]) == 1
    said = capfd.readouterr().out
    table = [line.split() for line in said[said.rindex("lane ") :].splitlines()]
    assert table[1][:5] == ["one", "FAILED", "32", "3", "0"]
    assert table[1][-2:] == ["2.0", "min"]
    assert table[2][:5] == ["two", "ok", "5", "0", "2"]
    assert RED in said and GREEN in said
    assert "NOT RUN: nemo_rl: " in said and "NEMO_RL_CHECKOUTS=FOLDER ci/engine.sh nemo_rl" in said
    assert said.splitlines()[-2] == "FAILED: one"
    assert said.splitlines()[-1].startswith("==== 3 failed, 37 passed, 2 skipped in ")


def test_a_lane_without_tests_that_fails_is_red_too(
    lanes: ModuleType, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(lanes, "LANES", {"checks": says("bad", 3), "two": says(GREEN, 0)})
    assert lanes.main(["checks"]) == 1
    assert "FAILED: checks" in capfd.readouterr().out
    assert lanes.main(["two"]) == 0
    assert "every lane that ran is green" in capfd.readouterr().out
    assert lanes.main(["three"]) == 2


def test_every_engine_with_an_environment_has_a_lane(lanes: ModuleType) -> None:
    from nemotron_shared.machine.environments import ENVIRONMENTS

    others = {"libllama"}  # llama.cpp's library is run in the lane of its converter
    of_none = {"ordinary", "slow", "checks", "clients"}
    assert {each.name for each in ENVIRONMENTS} - others == lanes.LANES.keys() - of_none
    assert (ROOT / ".ci" / "run").read_text().rstrip().endswith("ci/lanes.py")


def test_what_mends_a_check_runs_in_the_projects_environment() -> None:
    script = (ROOT / "ci" / "check.sh").read_text(encoding="utf-8")
    mends = re.findall(r'^check "([^"]+)" ', script, re.MULTILINE)
    assert len(mends) >= 4 and [mend for mend in mends if not mend.startswith("uv run ")] == []
