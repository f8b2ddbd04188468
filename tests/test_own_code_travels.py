"""A job on another machine takes along the user's files with rewards, and what they import from their folder."""

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from omegaconf import OmegaConf

from nemotron_app.remote.prepare import _named_paths, _take_own_code_along
from nemotron_shared.system.errors import UserError


def place_of(path: str) -> Any:
    tree = OmegaConf.create({"rewards": [{"name": "strict", "weight": 1.0}, {"path": path}]})
    return SimpleNamespace(composed=SimpleNamespace(tree=tree), loaded=SimpleNamespace(name="far"))


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "here"
    (folder / "judging" / "words").mkdir(parents=True)
    (folder / "judging" / "mine.py").write_text("import words.lists\ndef right(completion): ...\n")
    (folder / "judging" / "words" / "lists.py").write_text("")
    (folder / "judging" / "unused.py").write_text("")
    monkeypatch.chdir(folder)
    return folder


def test_the_file_and_its_imports_lie_in_the_same_places(here: Path, tmp_path: Path) -> None:
    _take_own_code_along(place_of("judging/mine.py:right"), tmp_path / "job")
    found = {str(file.relative_to(tmp_path / "job" / "files")) for file in (tmp_path / "job").rglob("*.py")}
    assert found == {"judging/mine.py", "judging/words/lists.py"}
    assert "words" not in sys.modules, "nothing of it runs"


@pytest.mark.parametrize("path", ["{here}/judging/mine.py:right", "../other.py:right", "~/other.py:right"])
def test_a_path_that_means_nothing_elsewhere_is_refused(here: Path, tmp_path: Path, path: str) -> None:
    (tmp_path / "other.py").write_text("def right(completion): ...\n")
    with pytest.raises(UserError, match="does not travel to far: it is not below the working folder"):
        _take_own_code_along(place_of(path.format(here=here)), tmp_path / "job")


def test_a_container_on_this_machine_gets_the_folder(here: Path) -> None:
    assert list(_named_paths(place_of(f"{here}/judging/mine.py:right"))) == [f"{here}/judging"]
    assert not list(_named_paths(place_of("judging/mine.py:right")))
