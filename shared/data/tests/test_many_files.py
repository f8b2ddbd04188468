"""Planning over many files asks the disk a fixed number of times for each of them."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from nemotron_data.sources import datasets
from nemotron_data.sources.datasets import RowKind
from nemotron_data.sources.files import expand
from nemotron_shared.config.data import SourceSection
from nemotron_shared.errors import UserError

FILES = 60


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for number in range(FILES):
        place = tmp_path / "rows" / str(number % 3) / f"{number}.jsonl"
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(json.dumps({"text": str(number)}) + "\n")
    return tmp_path / "rows"


def count(monkeypatch: pytest.MonkeyPatch, owner: object, name: str) -> list[Any]:
    """The arguments of every call of a function."""
    calls: list[Any] = []
    original = getattr(owner, name)
    monkeypatch.setattr(owner, name, lambda *given, **named: calls.append(given) or original(*given, **named))
    return calls


def test_links_of_folders_are_followed_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    followed = count(monkeypatch, os.path, "realpath")
    assert len(expand([folder])) == FILES
    assert 0 < len(followed) < 20


def test_a_blend_looks_for_templates_and_tokenizers_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sets = [{"name": path.stem, "path": str(path)} for path in sorted(folder.rglob("*.jsonl"))]
    blend = folder.parent / "blend.json"
    blend.write_text(json.dumps({"datasets": sets}, indent=1))
    looked = count(monkeypatch, datasets, "own_files")
    kind = RowKind("text", folder, lambda seed, rows: [], "text")
    settings = SourceSection.model_construct(source=str(blend), subset=None, hub_split=None)
    found = kind.sources(settings, 0)
    assert len(looked) == 1
    assert [source.uri for source in found] == [str(blend), *(one["path"] for one in sets)]


def test_the_same_file_by_a_link_is_still_named_twice(folder: Path) -> None:
    link = folder.parent / "linked"
    link.symlink_to(folder / "0")
    with pytest.raises(UserError, match="named twice"):
        expand([folder, link])
    (folder / "1" / "again.jsonl").symlink_to(folder / "2" / "2.jsonl")
    with pytest.raises(UserError, match="named twice"):
        expand([folder])
