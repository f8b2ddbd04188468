"""Private names of other libraries that we use stand in tests/private_names.yaml, and are still there."""

import ast
import importlib
import inspect
import platform
import re
import textwrap
from importlib import metadata
from pathlib import Path
from typing import Any

import private_names
import pytest
import yaml

ROOT = Path(__file__).parents[1]
TABLE: list[dict[str, Any]] = yaml.safe_load((ROOT / "tests" / "private_names.yaml").read_text(encoding="utf-8"))
ROWS = [(library, row) for library in TABLE for row in library["names"]]
INSTALLED = [library for library in TABLE if "version" in library]


def owner_of(path: str) -> Any:
    """The module or class that has the last name of a dotted path."""
    words = path.split(".")[:-1]
    for length in range(len(words), 0, -1):
        try:
            owner = importlib.import_module(".".join(words[:length]))
        except ModuleNotFoundError:
            continue
        for word in words[length:]:
            owner = getattr(owner, word)
        return owner
    raise AssertionError(f"{words[0]} is not installed")


def is_there(path: str) -> bool:
    """Whether a library has a name: as an attribute, or in the code of the class that sets it on its objects."""
    owner, name = owner_of(path), path.rpartition(".")[2]
    if hasattr(owner, name):
        return True
    return re.search(rf"\b{name}\b", without_comments(inspect.getsource(owner))) is not None


def without_comments(source: str) -> str:
    """Code without comments and docstrings, which may name what is gone."""
    tree = ast.parse(textwrap.dedent(source))
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            node.value = ast.Constant(None)
    return ast.unparse(tree)


@pytest.mark.parametrize("library", INSTALLED, ids=lambda library: library["library"])
def test_a_private_name_is_still_there(library: dict[str, Any]) -> None:
    gone = [row["name"] for row in library["names"] if not is_there(row["name"])]
    assert not gone, "change the files that use it (tests/private_names.yaml)"


def test_a_name_that_is_gone_is_noticed() -> None:
    for path in ("transformers.Trainer._save_checkpoints", "trl.GRPOTrainer._steps", "omegaconf.base.Container._gone"):
        assert not is_there(path)
    assert "_gone" not in without_comments('class A:\n    "Has _gone."\n    kept = 1  # not _gone\n')


@pytest.mark.parametrize("library", INSTALLED, ids=lambda library: library["library"])
def test_the_table_was_looked_at_with_the_version_in_use(library: dict[str, Any]) -> None:
    name = library["library"]
    version = platform.python_version() if name == "python" else metadata.version(name)
    assert f"{version}.".startswith(f"{library['version']}."), f"{name} {version}: look at its rows, then raise theirs"


@pytest.mark.parametrize(
    "library", [library for library in TABLE if "held_by" in library], ids=lambda one: one["library"]
)
def test_names_of_other_environments_are_held_by_a_lane(library: dict[str, Any]) -> None:
    text = (ROOT / library["held_by"]).read_text(encoding="utf-8")
    lanes = set(re.findall(r"^(\w+)\)", (ROOT / "ci" / "engine.sh").read_text(encoding="utf-8"), re.MULTILINE))
    marks = re.search(r"^pytestmark = (.*)$", text, re.MULTILINE)
    assert marks and lanes & set(re.findall(r"pytest\.mark\.(\w+)", marks[1])), "no lane runs this file"
    assert "/conformance/" in library["held_by"]


@pytest.fixture(scope="module")
def used() -> dict[str, set[str]]:
    return private_names.used()


def test_every_private_name_in_use_has_a_row(used: dict[str, set[str]]) -> None:
    assert len(used) > 50
    known = {word for _, row in ROWS for word in row["name"].split(".")}
    assert {name: sorted(files) for name, files in used.items() if name not in known} == {}


def test_the_files_of_a_row_use_its_name() -> None:
    assert len(ROWS) > 80
    for _, row in ROWS:
        name = row["name"].rpartition(".")[2]
        assert row["used_by"] and row["why"], row
        for file in row["used_by"]:
            assert re.search(rf"\b{name}\b", (ROOT / file).read_text(encoding="utf-8")), f"{file} does not use {name}"


def test_a_row_names_every_source_file_that_uses_it(used: dict[str, set[str]]) -> None:
    listed: dict[str, set[str]] = {}
    for _, row in ROWS:
        listed.setdefault(row["name"].rpartition(".")[2], set()).update(row["used_by"])
    for name, files in used.items():
        sources = {file for file in files if not private_names.is_test(file)}
        assert sources <= listed.get(name, sources), name


def test_a_private_name_is_found_in_every_form(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = """
from ray._private import services
import hydra._internal.core as core
class Ours(Trainer):
    def _save(self): super()._save()
    def _mine(self): self._kept = 1; return self._kept, self._mine
    def _call(self): getattr(model, "_config"); ray.init(_memory=1); model._hooks; row._replace(a=1)
"""
    (tmp_path / "ours.py").write_text(code)
    monkeypatch.setattr(private_names, "ROOT", tmp_path)
    monkeypatch.setattr(private_names, "_files", lambda: ("ours.py",))
    for cached in (private_names._tree, private_names._names_of, private_names._names_of_classes):
        cached.cache_clear()
    assert set(private_names.used()) == {"_private", "_internal", "_save", "_config", "_memory", "_hooks"}
    for cached in (private_names._tree, private_names._names_of, private_names._names_of_classes):
        cached.cache_clear()
