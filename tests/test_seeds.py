"""The guides' promises, one by one: each row of seeds.yaml is what happens today, no better and no worse.

A row that begins to work without being claimed fails like one that stops working.
"""

import ast
import json
import os
import shlex
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from seeds_page import PAGE, page
from seeds_table import Row, covered, expected_ids, in_repository, read_table
from support import ROOT, argv, nemotron, run_forked

ROWS, FILES = read_table()
Outcome = subprocess.CompletedProcess[str]


def run_in(home: Path, command: str, folder: str) -> Outcome:
    """Run a command in a folder of its own, with the guides' files and an empty store; `&&` joins commands."""
    for name, text in FILES.items():
        (home / name).parent.mkdir(exist_ok=True)
        (home / name).write_text(text, encoding="utf-8")
    cwd = ROOT / folder if folder else home
    key = {"WANDB_API_KEY": "0" * 40}  # some of the recipes log to W&B, which nothing starts without
    environment = os.environ | {"NEMOTRON_HOME": str(home / "store"), "HF_HUB_OFFLINE": "1"} | key
    *before, last = [shlex.split(part) for part in command.split(" && ")]
    for words in before:
        result = run_one(words, cwd, environment, home)
        assert result.returncode == 0, f"{shlex.join(words)}\n{result.stderr}"
    return run_one(last, cwd, environment, home)


def run_one(words: list[str], cwd: Path, environment: dict[str, str], home: Path) -> Outcome:
    """The many commands of `nemotron` run in forks; the few of python and torchrun as processes of their own."""
    if words[0] == "nemotron":
        return run_forked(nemotron(*words[1:]), cwd, environment)
    return subprocess.run(argv(words), cwd=cwd, env=environment, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Row], Outcome]:
    """What a row's command does; the same command runs once."""
    done: dict[tuple[str, str], Outcome] = {}

    def run(row: Row) -> Outcome:
        key = (row.command, row.folder)
        if key not in done:
            done[key] = run_in(tmp_path_factory.mktemp("seed"), *key)
        return done[key]

    return run


def value_of(config: dict[str, Any], key: str) -> Any:
    """A value by its dotted key; what is absent is said, since null is a value."""
    node: Any = config
    for part in key.split("."):
        if not isinstance(node, dict) or part not in node:
            return f"no such key: {key}"
        node = node[part]
    return node


def parameters(rows: list[Row]) -> list[Any]:
    """Rows of one command side by side, so that one process of the tests has them all."""
    ordered = sorted(rows, key=lambda row: (row.command, row.folder))
    return [pytest.param(row, id=str(row), marks=[pytest.mark.slow] if row.slow else []) for row in ordered]


@pytest.mark.parametrize("row", parameters([row for row in ROWS if row.command]))
def test_a_command_does_what_the_table_says(outcome: Callable[[Row], Outcome], row: Row) -> None:
    result = outcome(row)
    said = result.stdout + result.stderr
    assert row.state != "missing" or result.returncode, f"{row} works now: claim it in seeds.yaml\n{row.command}"
    assert result.returncode == row.exit, f"{row}: exit code {result.returncode}\n{row.command}\n{said}"
    for text in row.text:
        assert text in said, f"{row}: not said: {text}\n{row.command}\n{said}"
    if row.values:
        config = json.loads(result.stdout)["config"]
        assert {key: value_of(config, key) for key in row.values} == dict(row.values), row.command
    if row.state == "works":
        assert "Traceback" not in result.stderr, said


@pytest.mark.parametrize("row", [row for row in ROWS if row.file], ids=str)
def test_a_file_is_there_or_not_as_the_table_says(row: Row) -> None:
    path = in_repository(row.file)
    if row.state == "missing":
        assert not path.exists(), f"{row} is there now: claim it in seeds.yaml"
        return
    text = path.read_text(encoding="utf-8")
    assert [wanted for wanted in row.text if wanted not in text] == [], f"{row}: {row.file}"


@pytest.mark.parametrize("row", [row for row in ROWS if row.test], ids=str)
def test_a_test_that_a_row_names_exists(row: Row) -> None:
    path, _, name = row.test.partition("::")
    tree = ast.parse(in_repository(path).read_text(encoding="utf-8"))
    assert name in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}, f"{row}: {row.test}"


def test_every_id_has_a_row() -> None:
    assert covered(ROWS) == expected_ids()
    ids = [name for row in ROWS for name in row.ids]
    assert len(ids) == len(set(ids)), "an id stands twice"
    assert len(ROWS) >= 250


def test_what_works_can_be_seen() -> None:
    shown = [row for row in ROWS if row.state == "works" and row.how in {"run", "dry-run", "parse", "library"}]
    assert [str(row) for row in shown if not (row.command or row.test)] == []
    assert len(shown) >= 100


def test_the_page_shows_the_table() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(ROWS), "run: python tests/seeds_page.py"
