"""`run.home` names the store, wherever it is written and whichever command reads it."""

import json
from pathlib import Path

import pytest
from support import ROOT

from nemotron_app import pipeline
from nemotron_app.main import main
from nemotron_shared.artifacts import Store
from nemotron_shared.step.arguments import Arguments
from nemotron_shared.step.preflight import preflight
from nemotron_shared.step.start import load
from stages.rl import data_prep
from stages.rl.data_prep import STEP


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A store that is neither the environment's nor the working folder's."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NEMOTRON_HOME", str(tmp_path / "not-this-one"))
    monkeypatch.setenv("STORE", str(tmp_path / "elsewhere"))
    text = "defaults: [tiny, _self_]\nrun:\n  home: {}\n"
    (tmp_path / "plain.yaml").write_text(text.format(tmp_path / "elsewhere"))
    (tmp_path / "variable.yaml").write_text(text.format("${oc.env:STORE}"))
    return tmp_path / "elsewhere"


@pytest.mark.parametrize(
    "words",
    [
        ["-c", "tiny", "run.home=elsewhere"],
        ["-c", "tiny", "++run.home=elsewhere"],
        ["-c", "tiny", "eval.run.home=elsewhere"],
        ["-c", "tiny", "eval.run.home=elsewhere", "run.home=not-that-one"],
        ["-c", "plain.yaml"],
        ["-c", "variable.yaml"],
        ["-c", "plain.yaml", "run.home=${oc.env:STORE}"],
    ],
    ids=" ".join,
)
def test_the_report_of_a_pipeline_is_made_from_the_store_that_its_steps_used(
    elsewhere: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    monkeypatch.setattr(pipeline, "_run", lambda step, ahead: (0, False, 0.0))
    assert main(["super3", "pipeline", *words]) == 2
    assert f"nothing of super3 in {elsewhere / 'artifacts'}" in capsys.readouterr().err


@pytest.mark.parametrize("option", ["run.home=", "++run.home=", "--home="])
def test_commands_that_look_at_a_store_take_it_as_those_that_fill_it(
    elsewhere: Path, capsys: pytest.CaptureFixture[str], option: str
) -> None:
    data_prep.main(["-c", "tiny", "--sample", "20", f"run.home={elsewhere}"])
    capsys.readouterr()
    assert main(["data", "inspect", "rl-data", f"{option}{elsewhere}", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["splits"]
    assert main(["super3", "data", "inspect", "rl-data", f"{option}{elsewhere}"]) == 0
    for words in (["artifacts", "show", "rl-data"], ["artifacts"], ["runs", "--all"], ["report"]):
        assert main([*words, f"{option}{elsewhere}"]) == 0, capsys.readouterr().err
        assert "rl-data" in capsys.readouterr().out or words[0] == "report"


def test_no_store_is_the_default_one(elsewhere: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "inspect", "rl-data", "run.home=null"]) == 2
    assert "not-this-one" in capsys.readouterr().err


def test_a_stage_in_its_own_folder_uses_the_store_of_the_repository_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NEMOTRON_HOME", raising=False)
    asked = Arguments("tiny", (), dry_run=True, json=False)
    monkeypatch.chdir(ROOT / "stages" / "rl")
    assert Store.open().home == ROOT / ".nemotron"
    assert f"the store is the repository's: {ROOT / '.nemotron'}" in preflight(load(STEP, asked)).notes
    given = Arguments("tiny", ("run.home=.nemotron",), dry_run=True, json=False)
    assert preflight(load(STEP, given)).notes == []
    for folder in (ROOT, tmp_path):
        monkeypatch.chdir(folder)
        assert Store.open().home == folder / ".nemotron"
        assert preflight(load(STEP, asked)).notes == []
