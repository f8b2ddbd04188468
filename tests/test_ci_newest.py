"""`ci/newest.py` without a network: what it reads, and how it says what is held back by whom."""

import importlib.util
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from nemotron_shared.machine.environments import ENVIRONMENTS

ROOT = Path(__file__).resolve().parents[1]
FILE = ROOT / "ci/newest.py"


@pytest.fixture(scope="module")
def newest() -> Any:
    spec = importlib.util.spec_from_file_location("newest", FILE)
    assert spec is not None and spec.loader is not None
    sys.modules["newest"] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_file_of_pins_is_tried_and_pins_what_its_lane_is_about(newest: Any) -> None:
    own = {f"{(one.requirements or ('', ''))[1]}" for one in ENVIRONMENTS if one.requirements}
    tried = {Path(pins.file).name for pins in newest.FILES}
    assert own - tried == {"libllama.txt"}, "which has the version of llama_cpp.txt"
    for pins in newest.FILES:
        pinned = dict(newest.PIN.findall((ROOT / pins.file).read_text()))
        assert set(pins.wanted) <= set(pinned), pins.lane
        pythons = next((one.pythons for one in ENVIRONMENTS if one.name == pins.lane), ("3.11",))
        assert pins.python[:4] in pythons, pins.lane


def test_what_holds_a_package_back_is_asked_of_the_resolver(newest: Any) -> None:
    pins = newest.Pins("lane", "file", ("client", "server"))
    asked = []

    def resolve(wanted: Sequence[str], python: str) -> tuple[dict[str, str], str]:
        asked.append(list(wanted))
        if "client==3" in wanted:
            return {}, "Because server==2 depends on client<3"
        return {"client": "2", "server": "2"}, ""

    rows = newest.rows_of(pins, "client==1\nserver==2\nother==9\n", {"client": "3", "server": "2"}.__getitem__, resolve)
    assert asked == [["client==3", "server==2"], ["client", "server"], ["client==3", "server==2"]]
    assert [(one.pinned, one.newest, one.resolves) for one in rows] == [("1", "3", "2"), ("2", "2", "2")]
    assert [one.held_by for one in rows] == ["Because server==2 depends on client<3", ""]
    assert newest.table(rows).splitlines() == [
        "lane  package  pinned  newest  resolves  held back by",
        "lane  client   1       3       2         Because server==2 depends on client<3",
        "1 of 2 packages are at their newest",
    ]


def test_the_ranges_that_hold_back_are_our_own(newest: Any, tmp_path: Path) -> None:
    (tmp_path / "stages/sft").mkdir(parents=True)
    (tmp_path / "pyproject.toml").write_text('[dependency-groups]\ndev = ["free>=1", "exact[all]==2.0 ; x == \'y\'"]\n')
    (tmp_path / "stages/sft/pyproject.toml").write_text(
        '[project]\ndependencies = ["nemotron-core", "exact>=1", "below>=1,<3"]\n'
    )
    packages = {"free": "1", "exact": "2.0", "below": "2", "far": "1"}
    (tmp_path / "uv.lock").write_text(
        "".join(f'[[package]]\nname = "{name}"\nversion = "{version}"\n' for name, version in packages.items())
    )
    latest = {"free": "2", "exact": "3.0", "below": "3"}
    rows = newest.lock_rows(tmp_path, latest.__getitem__, lambda: "Update below v1, v2 -> v1, v2.9\nAdd new v1\n")
    assert [(one.package, one.resolves, one.held_by) for one in rows] == [
        ("below", "2.9", ">=1,<3 in stages/sft/pyproject.toml"),
        ("exact", "2.0", "==2.0 in pyproject.toml"),
        ("free", "1", "what other packages ask for"),
    ]


def test_the_ranges_of_this_repository_are_found(newest: Any) -> None:
    found = newest.ranges(ROOT)
    assert found["nemo-automodel"] == {"shared/engines/pyproject.toml": "==0.7.0"}
    assert {"torch", "transformers", "trl", "peft", "datasets"} <= set(found)


def test_a_raised_file_keeps_its_lines_and_loses_the_hashes_of_what_changed(newest: Any) -> None:
    text = "# pins\n--no-binary one\none==1 --hash=sha256:ab\ntwo==2 ; x == 'y'\n"
    raised = newest.raised_text(text, {"one": "1.5", "two": "2", "three": "3"})
    assert raised == "# pins\n--no-binary one\none==1.5\ntwo==2 ; x == 'y'\nthree==3\n"
    assert newest.raised_text(text, {}) == text


def test_the_reason_is_one_sentence(newest: Any) -> None:
    said = """  × No solution found when resolving dependencies:
  ╰─▶ Because one==2 depends on two<1.5 and you require one==2, we can conclude that you
      require two<1.5.
      And because you require two==3, your requirements are unsatisfiable."""
    assert newest.reason(said) == "Because one==2 depends on two<1.5 and you require one==2"
    assert len(newest.reason("Because " + "x" * 1000)) <= newest.REASON_LENGTH + 3


def test_an_unknown_lane_is_named() -> None:
    done = subprocess.run([sys.executable, FILE, "nothing"], capture_output=True, text=True, check=False)
    assert done.returncode == 2 and "no lane named 'nothing'; there are: nemo_gym, nemo_run" in done.stderr
