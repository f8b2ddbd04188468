"""What `nemotron new reward` and `nemotron new task` write works as it is; tests/test_plugin_training.py installs the
packages of a format and an engine.
"""

import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest
import yaml

from nemotron_app.main import main
from nemotron_shared.step.own_code import KEYS, OwnFunction


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(("kind", "key"), [("reward", "rewards"), ("task", "data_prep.tasks")])
def test_it_tests_itself_and_can_be_named_in_a_config(
    kind: str, key: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["new", kind, "brief"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("wrote brief.py\n  python brief.py\n  nemotron super3 ")
    assert "{path: brief.py:brief}" in said and "{path: brief.py:brief}" in (here / "brief.py").read_text()
    done = subprocess.run([sys.executable, "brief.py"], capture_output=True, text=True, check=True)
    assert ("brief: all answers" if kind == "reward" else "What is 1+2?") in done.stdout
    function, asked = OwnFunction("brief.py:brief").load(KEYS[key])
    assert set(asked) == ({"completion", "expected"} if kind == "reward" else set()) and callable(function)


@pytest.mark.parametrize("stage", ["pretrain", "rl"])
def test_an_engine_is_one_of_its_stage(stage: str, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = f"try_{stage}"
    assert main(["new", "engine", name, stage]) == 0
    monkeypatch.syspath_prepend(str(here / name))
    engine = vars(import_module(name))[f"Try{stage.capitalize()}"]
    values = yaml.safe_load((here / name / name / "config" / "engine" / f"{name}.yaml").read_text())
    assert engine.settings.model_validate(values).note == "hello"
    assert callable(import_module(f"{name}.work").train)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["reward", "json"], "'json' cannot name a function and its file"),
        (["reward", "a-b"], "'a-b' cannot name a function"),
        (["task", "class"], "'class' cannot name a function"),
        (["mine"], "say: nemotron new mine --from sft/local; or nemotron new reward|task|format|environment NAME; or"),
        (["engine", "mine"], "an engine belongs to a stage"),
        (["engine", "Mine", "sft"], "'Mine' cannot name a package and its results"),
        (["engine", "_", "sft"], "'_' cannot name a package"),
        (["engine", "peft", "sft"], "'peft' would hide the installed package"),
        (["engine", "trl", "rl"], "there is already the engine 'trl'"),
        (["format", "messages"], "there is already the format 'messages'"),
        (["reward", "strict"], "there is already the reward 'strict'"),
        (["engine", "mine", "eval"], "'eval' is not a stage that makes a model"),
        (["reward", "mine", "sft"], "a config begins with another one"),
        (["reward"], "a config begins with another one"),
    ],
)
def test_other_words_are_refused(words: list[str], told: str, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["new", *words]) == 2
    assert told in capsys.readouterr().err
    assert not list(here.iterdir())


def test_a_file_is_not_replaced_unasked(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "brief.py").write_text("mine")
    assert main(["new", "reward", "brief"]) == 2
    assert "brief.py already exists" in capsys.readouterr().err and (here / "brief.py").read_text() == "mine"
    assert main(["new", "reward", "brief", "--force"]) == 0
    assert "def brief(" in (here / "brief.py").read_text()
