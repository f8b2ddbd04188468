"""Which modules count for a result, and which changes of them."""

import time
from pathlib import Path

import pytest

from nemotron_shared.step.code import modules_of
from nemotron_shared.system.file_cache import FileCache

FILES = {
    "__init__.py": "",
    "train.py": "from ours import schema\nfrom ours.rows import read\n",
    "schema.py": "from ours.one.settings import One\nfrom ours.two.settings import Two\n",
    "rows.py": '"""Rows."""\n\n\ndef read(path):\n    """Read it."""\n    import ours.late\n    return path  # it\n',
    "late.py": "from typing import TYPE_CHECKING\n\nif TYPE_CHECKING:\n    from ours import types_only\nVALUE = 1\n",
    "types_only.py": "VALUE = 1\n",
    "one/__init__.py": "",
    "one/settings.py": "class One: ...\n",
    "one/engine.py": "from .settings import One\n",
    "two/__init__.py": "",
    "two/settings.py": "class Two: ...\n",
}


@pytest.fixture
def package(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        path = tmp_path / "ours" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path / "ours"


def loaded(package: Path, *entries: str) -> dict[str, str]:
    return modules_of(entries or ("ours.train", "ours.one.engine"), {"ours": package})


def test_the_modules_are_those_that_are_reached(package: Path) -> None:
    assert set(loaded(package)) == {
        "ours", "ours.train", "ours.schema", "ours.rows", "ours.late",
        "ours.one", "ours.one.settings", "ours.one.engine",
    }  # fmt: skip
    assert "ours.one.settings" not in loaded(package, "ours.train")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("rows.py", "def read(path):\n    # a comment\n    import ours.late\n\n    return (path)\n"),
        ("rows.py", '"""Other words."""\ndef read( path ):\n    "Other."\n    import ours.late\n    return path\n'),
        ("two/settings.py", "class Two:\n    value: int = 2\n"),
        ("types_only.py", "VALUE = 2\n"),
    ],
)
def test_what_changes_no_digest(package: Path, name: str, text: str) -> None:
    before = loaded(package)
    (package / name).write_text(text)
    assert loaded(package) == before


@pytest.mark.parametrize("name", ["rows.py", "late.py", "one/settings.py", "one/engine.py", "schema.py"])
def test_code_that_is_loaded_changes_its_own_digest_and_no_other(package: Path, name: str) -> None:
    before = loaded(package)
    path = package / name
    path.write_text(path.read_text() + "EXTRA = 1\n")
    now = loaded(package)
    assert [key for key in before if now[key] != before[key]] == [f"ours.{name[:-3].replace('/', '.')}"]


def test_a_module_that_is_left_out_is_not_followed(package: Path) -> None:
    found = modules_of(["ours.train"], {"ours": package}, without=frozenset({"ours.rows"}))
    assert not {"ours.rows", "ours.late"} & set(found)


def test_what_was_parsed_is_kept_until_the_file_changes(package: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache" / "code.json"
    time.sleep(0.15)  # what was written a moment ago is not remembered
    for _ in range(2):
        known = FileCache(cache)
        first = modules_of(["ours.train"], {"ours": package}, known)
        known.save()
    (package / "late.py").write_text("VALUE = 2\n")
    assert modules_of(["ours.train"], {"ours": package}, FileCache(cache)) != first
    cache.write_text("damaged")
    assert modules_of(["ours.train"], {"ours": package}, FileCache(cache))["ours.train"] == first["ours.train"]
