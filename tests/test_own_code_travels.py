"""A job on another machine takes along the user's files with rewards, and what they import from their folder."""

import sys
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from omegaconf import OmegaConf

from nemotron_app.remote import command, prepare
from nemotron_app.remote.prepare import _named_paths, _take_own_code_along
from nemotron_app.request import Request
from nemotron_shared.step.own_code import OwnFunction, digests_in
from nemotron_shared.system.errors import UserError
from stages.rl.train import main


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


@pytest.mark.parametrize("name", ["mine.py", "linked.py", "mine.v2.py"])
def test_it_runs_from_there(here: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    (here / "judging" / "words" / "lists.py").write_text("LENGTH = 3\n")
    text = "from words.lists import LENGTH\ndef right(completion): return LENGTH\n"
    (here / "judging" / ("mine.py" if name == "linked.py" else name)).write_text(text)
    (here / "judging" / "linked.py").symlink_to("mine.py")
    _take_own_code_along(place_of(f"judging/{name}:right"), tmp_path / "job")
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])
    entry = {"rewards": [{"path": f"judging/{name}:right"}]}
    before = digests_in(entry, ["rewards"])
    monkeypatch.chdir(tmp_path / "job" / "files")
    assert digests_in(entry, ["rewards"]) == before
    function, asked = OwnFunction(f"judging/{name}:right").load(("completion",))
    for one in ("words", "words.lists"):
        sys.modules.pop(one)
    assert (asked, function(completion="")) == (("completion",), 3)


@pytest.mark.parametrize(
    "path",
    [
        "{here}/judging/mine.py:right",
        "../other.py:right",
        "~/judging/mine.py:right",
        "judging/../judging/mine.py:right",
    ],
)
def test_a_path_that_means_nothing_elsewhere_is_refused(
    here: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    monkeypatch.setenv("HOME", str(here))
    (tmp_path / "other.py").write_text("def right(completion): ...\n")
    with pytest.raises(UserError, match="does not travel to far: it is not below the working folder"):
        _take_own_code_along(place_of(path.format(here=here)), tmp_path / "job")


def test_a_container_on_this_machine_gets_the_folder(here: Path) -> None:
    assert list(_named_paths(place_of(f"{here}/judging/mine.py:right"))) == [f"{here}/judging"]
    assert not list(_named_paths(place_of("judging/mine.py:right")))


def test_a_job_of_another_machine_has_them_before_it_is_submitted(
    here: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = list[str]()

    def noted(place: Any, folder: Path) -> None:
        found.extend(file.name for file in (folder / "files").rglob("*.py"))
        raise UserError("so far")

    monkeypatch.setattr(prepare, "is_elsewhere", lambda profile: True)
    monkeypatch.setattr(prepare, "backend_of", lambda profile: SimpleNamespace(there=lambda folder: folder))
    monkeypatch.setattr(prepare, "_take_files_along", lambda place, folder: None)
    monkeypatch.setattr(prepare, "_copy_own_configs", noted)
    place = place_of("judging/mine.py:right")
    place.profile, place.store = None, tmp_path / "home"
    job: Any = SimpleNamespace(name="job")
    with pytest.raises(UserError, match="so far"):
        prepare.make_folder(job, place, "")
    assert sorted(found) == ["lists.py", "mine.py"]


@pytest.mark.parametrize("elsewhere", [True, False])
def test_a_dry_run_of_a_job_refuses_the_path_as_its_start_does(
    here: Path, monkeypatch: pytest.MonkeyPatch, elsewhere: bool
) -> None:
    place = place_of(f"{here}/judging/mine.py:right")
    place.profile, place.here, place.request = None, None, Request("nano3", (), None, (), dry_run=True, json=False)
    monkeypatch.setattr(command, "is_elsewhere", lambda profile: elsewhere)
    monkeypatch.setattr(command, "described", lambda place, job: {})
    monkeypatch.setattr(command, "step_process", lambda *words: nullcontext([]))
    preview = b'{"problems": ["first"], "notes": []}'
    monkeypatch.setattr(command, "run_process", lambda words, stdout: stdout.write(preview))
    job: Any = SimpleNamespace(name="job")
    first, *others = command.problems("rl", "train", place, job)
    assert first == "first"
    assert ["mine.py does not travel to far" in one for one in others] == [True] * elsewhere


def test_consent_is_asked_for_before_a_job_waits_in_a_queue(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "machine.yaml").write_text("processes: 1\nsees_files: false\n")
    words = ["-c", "tiny", "rewards=[{path: judging/mine.py:right}]", "--dry-run", "--machine", "machine.yaml"]
    assert main(words) == 1
    assert "this runs judging/mine.py\n  read it, then add --trust-code to the command" in capsys.readouterr().out
    assert main([*words, "--trust-code"]) in (0, 1)
    assert "judging/mine.py\n  read it" not in capsys.readouterr().out
