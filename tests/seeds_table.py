"""The table of seeds.yaml, read and checked: what the guides promise, and how far it is kept and shown today.

A row may not claim more than its evidence allows (`CLAIMS`): a dry run shows that something composes, and no more.
"""

import ast
import re
import runpy
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path, PurePath
from typing import Any

import pytest
import yaml
from support import ROOT

TABLE = Path(__file__).with_name("seeds.yaml")
STATES = {
    "runs": "what was promised was executed here, without a GPU, and its result is asserted.",
    "checked": "the real library or scheduler accepted it here; it was not executed in full.",
    "composes": "no more than a text is shown: a config has the values, a script the lines, or a page says it; or a "
    "stand-in took the place of what counts, as the remark says.",
    "by hand": "a test shows it, in an environment that CI does not make (NeMo-RL is a checkout, on no registry); "
    "somebody has to run `ci/engine.sh nemo_rl`.",
    "needs a GPU": "it cannot be shown on machines without GPUs; the remark says what can.",
    "differs": "something else happens, for the reason given.",
    "missing": "it is not there.",
}
CLAIMS = {
    "dry run": {"composes"},
    "file": {"composes"},
    "script": {"composes"},
    "run": {"composes", "runs"},
    "test": {"composes", "runs"},
    "Slurm": {"composes", "checked", "runs"},
    "library": {"composes", "checked", "runs"},
    "library, not in CI": {"by hand"},
    "none": set[str](),
}
"""What each kind of evidence can show at most. The other states claim nothing, so any evidence goes with them."""
SHOWN = set().union(*CLAIMS.values())
SCRIPTS_ALONE = {"shared/cluster/tests/test_airgap_scripts.py", "shared/cluster/tests/test_slurm_script.py"}
"""Tests that compare the text of scripts."""
# How many ids each letter has: the four guides, the project as a whole, and the guides' contradictions.
LAST = {"A": 36, "B": 37, "C": 22, "D": 22, "E": 7, "X": 14}
KEYS = {"id", "what", "state", "why", "command", "folder", "made", "test", "file", "expect"}
EXPECTED = {"exit", "text", "values", "problems", "before", "error"}


@dataclass(frozen=True)
class Row:
    """One promise. It is shown by a command, by a test, by a file of the repository, or not at all.

    Attributes:
        linked: it is a promise of a file that the guide links to, not of the guide's own text.
        made: the store of its command has stand-ins for what the steps before it make.
        problems: all that a dry run lists, as parts of its lines, or all that doctor may find wrong on some machine.
        before: all that a dry run of a job says is to do before it is submitted.
        error: words of the one error of a command.
    """

    ids: tuple[str, ...]
    what: str
    state: str
    linked: bool
    why: str = ""
    command: str = ""
    folder: str = ""
    made: bool = False
    test: str = ""
    file: str = ""
    exit: int | None = None
    text: tuple[str, ...] = ()
    values: Mapping[str, Any] = field(default_factory=dict)
    problems: tuple[str, ...] = ()
    before: tuple[str, ...] = ()
    error: str = ""

    def __str__(self) -> str:
        return "+".join(self.ids)

    @property
    def shown_by(self) -> str:
        """What a reader can run or open to see it."""
        return self.command or self.test or self.file

    @property
    def evidence(self) -> str:
        """Its kind, a key of `CLAIMS`."""
        if self.command:
            return "dry run" if "--dry-run" in self.command else "run"
        if self.test:
            return kind_of_test(self.test)
        return "file" if self.file else "none"


def read_table() -> tuple[list[Row], dict[str, str]]:
    """The rows, and the text of each file that their commands find in their folder."""
    content = yaml.safe_load(TABLE.read_text(encoding="utf-8"))
    linked = set(content["linked"])
    rows = [_row(entry, linked) for entry in content["rows"]]
    assert linked <= {name for row in rows for name in row.ids}, "`linked` names an id that has no row"
    return rows, content["files"]


def _row(entry: dict[str, Any], linked: set[str]) -> Row:
    ids = tuple([entry["id"]] if isinstance(entry["id"], str) else entry["id"])
    assert set(entry) <= KEYS, f"{ids}: unknown keys {set(entry) - KEYS}"
    assert all(re.fullmatch(r"[ABCDEX]\d\d(\.\d+)?", name) for name in ids), f"{ids}: not ids"
    expect = entry.get("expect", {})
    assert set(expect) <= EXPECTED, f"{ids}: unknown keys in expect"
    row = Row(
        ids=ids,
        linked=bool(linked & set(ids)),
        text=_texts(expect.get("text", ())),
        problems=_texts(expect.get("problems", ())),
        before=_texts(expect.get("before", ())),
        **{key: expect[key] for key in EXPECTED - {"text", "problems", "before"} if key in expect},
        **{key: entry[key] for key in KEYS - {"id", "expect"} if key in entry},
    )
    _check(row)
    return row


def _texts(value: str | list[str]) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else tuple(value)


def _check(row: Row) -> None:
    """A row says just enough, and claims no more than can be seen."""
    assert row.state in STATES, f"{row}: unknown state"
    assert len([way for way in (row.command, row.test, row.file) if way]) <= 1, f"{row}: more than one way to see it"
    allowed = CLAIMS[row.evidence]
    claim = row.state in SHOWN
    assert not claim or row.state in allowed, f"{row}: '{row.state}' by a {row.evidence}, which shows {allowed}"
    assert row.why or row.state in SHOWN, f"{row}: '{row.state}' needs a reason"
    assert not (row.why and row.state in ("runs", "checked")), f"{row}: a reason belongs to what is not shown"
    assert (row.exit is not None) == bool(row.command), f"{row}: an exit code belongs to a command"
    assert not row.values or "--json" in row.command, f"{row}: values come from --json"
    assert bool(row.exit) == bool(row.error or row.problems), f"{row}: what fails says why, in words that are checked"
    listing = "--dry-run" in row.command or row.command.startswith("nemotron doctor")
    assert not row.problems or listing, f"{row}: problems are listed by --dry-run and doctor"
    if row.command and claim:
        assert row.text or row.values or row.error or row.problems, f"{row}: an exit code alone shows nothing"
    assert not row.file or row.text, f"{row}: the words are missing that the file has"


def kind_of_test(name: str) -> str:
    """The kind of evidence that a test is, by where it lies and by which lane runs it.

    Raises:
        AssertionError: there is no such test, or no lane collects it.
    """
    path, _, function = name.partition("::")
    module = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    found = [node for node in module.body if isinstance(node, ast.FunctionDef) and node.name == function]
    assert len(found) == 1 and function.startswith("test_"), f"there is no test {name}"
    decorators = " ".join(map(ast.unparse, [*found[0].decorator_list, *_module_marks(module)]))
    marks = set(re.findall(r"pytest\.mark\.(\w+)", decorators))
    assert "skip" not in marks, f"{name} is skipped"
    options = pytest_options()
    folders = PurePath(path).parts
    assert folders[0] in options["testpaths"] and folders[-1].startswith("test_"), f"pytest does not collect {name}"
    if "conformance" in folders:
        assert marks & engines(), f"{name} has the mark of no engine"
        return "library" if marks & engines() & set(lanes()) else "library, not in CI"
    assert not set(folders) & set(options["norecursedirs"]), f"pytest does not collect {name}"
    if path in SCRIPTS_ALONE:
        return "script"
    return "Slurm" if folders[0] == "tests" and "slurm" in folders[-1] else "test"


def _module_marks(module: ast.Module) -> list[ast.expr]:
    assigned = [node for node in module.body if isinstance(node, ast.Assign)]
    return [node.value for node in assigned if ast.unparse(node.targets[0]) == "pytestmark"]


@cache
def pytest_options() -> dict[str, Any]:
    """Where pytest looks for tests."""
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["pytest"]["ini_options"]


@cache
def lanes() -> dict[str, list[str]]:
    """The lanes that .ci/run starts wherever it runs, with the command of each."""
    assert "ci/lanes.py" in (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    script = runpy.run_path(str(ROOT / "ci" / "lanes.py"))
    with pytest.MonkeyPatch.context() as patched:
        patched.delenv(script["CHECKOUTS"], raising=False)
        left_out = script["not_run"]()
    found = {name: command for name, command in script["LANES"].items() if name not in left_out}
    assert found["ordinary"][:3] == ["uv", "run", "pytest"] and found["slow"][3:5] == ["-m", "slow"]
    return found


def engines() -> set[str]:
    """All that ci/engine.sh can make, whose names are also the marks of their tests."""
    return set(re.findall(r"^(\w+)\)", (ROOT / "ci" / "engine.sh").read_text(encoding="utf-8"), re.MULTILINE))


def covered(rows: list[Row]) -> set[str]:
    """Ids without their suffixes."""
    return {name.partition(".")[0] for row in rows for name in row.ids}


def expected_ids() -> set[str]:
    return {f"{letter}{number:02d}" for letter, last in LAST.items() for number in range(1, last + 1)}
