"""The campaign of faults: it runs, its cases can be named, and it notices what a step gets wrong."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or not shutil.which("cc"), reason="faults are put between a step and Linux's libc"
)
# A step that reports success without making anything; what it finds it damages.
LIAR = """
import sys
from pathlib import Path
from nemotron_prove.faults import pieces
from nemotron_prove.faults.bench import Bench, Target
from nemotron_prove.faults.child import Command, adopt_orphans
from nemotron_prove.faults.tried import judge, judge_damage

class Liar:
    def main(self):
        for path in (bench.home / "artifacts").rglob("0.bin"):
            path.write_bytes(b"")
        return 0

adopt_orphans()
bench = Bench(Path(sys.argv[1]))
(bench.place / "bases" / "empty").mkdir(parents=True)
honest = Target("publish", Command(pieces.__name__, ("publish",)), pieces.NAME)
bench.measure(honest)
kept = bench.kept()
assert not judge(bench, honest, "nothing", [], kept).wrong
pieces.STEP = Liar()
tried = judge(bench, honest, "a lie", [], kept)
print(tried.silent, tried.finished, tried.wrong)
(bench.home / "artifacts" / pieces.NAME / "v1" / "manifest.json").unlink()
print(judge(bench, honest, "a loss", [], kept).bytes_lost > 90_000)
"""


def prove(*words: str, env: dict[str, str] | None = None) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "nemotron_app.main", "prove", "faults", *words]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ | (env or {}))


def found_by(*words: str) -> dict[str, Any]:
    done = prove(*words, "--json")
    assert done.stdout, done.stderr
    found = json.loads(done.stdout)
    assert (found["failures"], done.returncode) == ([], 0)
    return found


def test_faults_of_the_store_leave_nothing_wrong() -> None:
    """About 10 s of CPU time."""
    cases = [word for number in range(1, 61) for word in ("--only", f"store-{number}")]
    total = found_by("--seed", "1", "--workers", "1", *cases)["total"]
    assert total["faults"] + total["not_reached"] == 60
    assert total["faults"] >= 50 and total["finished"] == total["faults"]


@pytest.mark.slow
def test_a_hundred_faults_of_all_parts_leave_nothing_wrong() -> None:
    """About 150 s of CPU time, most of it for the six in trainings."""
    found = found_by("--seed", "1", "--count", "100")
    assert {one["part"] for one in found["kinds"]} == {"store", "prepare", "train"}
    assert found["total"]["faults"] >= 85


def test_what_a_step_gets_wrong_is_noticed(tmp_path: Path) -> None:
    library = tmp_path / "shim.so"
    source = Path(__file__).parents[1] / "src" / "nemotron_prove" / "faults" / "shim.c"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", str(library), str(source), "-ldl"], check=True)
    done = subprocess.run(
        [sys.executable, "-c", LIAR, str(tmp_path / "place")],
        capture_output=True, text=True, check=False, env=os.environ | {"LD_PRELOAD": str(library)},
    )  # fmt: skip
    assert done.stdout.splitlines() == ["True False ['the rerun made another result']", "True"], done.stderr


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ((), "how many faults"),
        (("--only", "shop-3"), "the parts are store, prepare, train; a case is a part and a number, such as store-17"),
        (("--only", "store-x"), "'store-x' is not a case"),
    ],
)
def test_what_cannot_be_tried_is_said(words: tuple[str, ...], says: str) -> None:
    done = prove(*words)
    assert done.returncode == 2
    assert says in done.stderr and "Traceback" not in done.stderr


def test_without_a_compiler_it_is_one_error(tmp_path: Path) -> None:
    done = prove("--seed", "1", "--count", "1", env={"PATH": str(tmp_path)})
    assert done.returncode == 2
    assert "no C compiler" in done.stderr and "Traceback" not in done.stderr
