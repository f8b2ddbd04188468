"""What of a person's folder travels with a job to another file system."""

import subprocess
from pathlib import Path

import pytest

from nemotron_cluster.job import FILES, pack
from nemotron_cluster.profiles import PROFILES, Slurm
from nemotron_shared.system.errors import UserError


def packed(start: Path, folder: Path, **keys: object) -> set[str]:
    folder.mkdir()
    profile = PROFILES["slurm"].model_validate({"executor": "slurm", **keys})
    assert isinstance(profile, Slurm)
    count = pack(profile, start, folder)
    found = {path.relative_to(folder / FILES).as_posix() for path in (folder / FILES).rglob("*") if path.is_file()}
    assert len(found) == count
    return found


@pytest.fixture
def start(tmp_path: Path) -> Path:
    start = tmp_path / "mine"
    (start / "data").mkdir(parents=True)
    for name in ("kept.jsonl", "data/a b.jsonl", "data/new.jsonl"):
        (start / name).write_text("{}\n")
    subprocess.run(["git", "init", "-q"], cwd=start, check=True)
    subprocess.run(["git", "add", "kept.jsonl", "data/a b.jsonl"], cwd=start, check=True)
    return start


def test_git_patterns_both_or_nothing(start: Path, tmp_path: Path) -> None:
    assert packed(start, tmp_path / "1") == {"kept.jsonl", "data/a b.jsonl"}
    new = {"packager_include_pattern": ["data/n*.jsonl"]}
    assert packed(start, tmp_path / "2", packager="pattern", **new) == {"data/new.jsonl"}
    assert packed(start, tmp_path / "3", packager="hybrid", **new) == {"kept.jsonl", "data/a b.jsonl", "data/new.jsonl"}
    assert packed(start, tmp_path / "4", packager="none", **new) == set()


def test_a_folder_that_git_does_not_keep_gives_nothing(tmp_path: Path) -> None:
    (tmp_path / "plain").mkdir()
    (tmp_path / "plain/a").write_text("a")
    assert packed(tmp_path / "plain", tmp_path / "1") == set()


WRONG = [("../x", "leads out of"), ("/etc/*", "leads out of"), ("*.csv", "fits nothing")]


@pytest.mark.parametrize(("pattern", "said"), WRONG)
def test_a_pattern_that_is_wrong_is_told(start: Path, tmp_path: Path, pattern: str, said: str) -> None:
    with pytest.raises(UserError, match=said):
        packed(start, tmp_path / "1", packager="pattern", packager_include_pattern=[pattern])
