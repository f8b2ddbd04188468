"""What commands do is noted at one commit, and what differs at another is shown."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest
from support import ROOT


@pytest.fixture(scope="module")
def behaviour() -> ModuleType:
    specification = importlib.util.spec_from_file_location("ci_behaviour", ROOT / "ci" / "behaviour.py")
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


def test_a_preparation_does_the_same_twice(behaviour: ModuleType, tmp_path: Path) -> None:
    noted = []
    for folder in (tmp_path / "one", tmp_path / "other"):
        folder.mkdir()
        said = behaviour._run(folder, "super3", "data", "prep", "rl", "-c", "tiny", "--sample", "40")
        files = behaviour._digests(folder / "store" / "artifacts" / "super3-rl-data" / "v1")
        noted.append({"said": said, "files": files})
    assert noted[0]["said"].startswith("exit 0\n") and "published super3-rl-data:v1" in noted[0]["said"]
    assert "train.jsonl " in noted[0]["files"] and "manifest.json" not in noted[0]["files"]
    assert behaviour.compare(*noted) == 0


def test_what_differs_is_shown(behaviour: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    before, after = {"help": "a\nb", "weights": "w 1"}, {"help": "a\nc", "new": "x"}
    assert behaviour.compare(before, after) == 1
    said = capsys.readouterr().out
    assert "-b\n+c" in said and "-w 1" in said and "+x" in said
    assert said.endswith("3 of 3 outputs differ\n")


def test_every_config_of_every_stage_is_chosen(behaviour: ModuleType) -> None:
    for stage in behaviour.STAGES:
        chosen = [words[1] for words in behaviour._choices(stage) if len(words) == 2]
        assert chosen == sorted(file.stem for file in (ROOT / "stages" / stage / "config").glob("*.yaml"))
