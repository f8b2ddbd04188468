"""Engines with an environment of their own: the stages offer them, list them, and start in them."""

import importlib
import json
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from support import STAGES

from nemotron_app.main import main
from nemotron_shared.machine.environments import ENVIRONMENTS, python_for_step


def test_an_environment_is_for_engines_that_stages_offer_and_names_their_extra(capsys) -> None:
    offered = {name for stage in STAGES for name in importlib.import_module(f"stages.{stage}.engines").ENGINES.own}
    assert {name for each in ENVIRONMENTS for name in each.engines} <= offered
    assert main(["engine"]) == 0
    listed = {line.split()[0]: line for line in capsys.readouterr().out.splitlines()[1:]}
    assert listed.keys() >= offered
    assert "pretrain, sft" in listed["automodel"]
    assert "Python 3.12, Linux" in listed["megatron_bridge"]
    assert "here: trl" in listed["trl"]


def test_an_environment_whose_clone_is_gone_is_not_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    clone = tmp_path / "a clone"
    clone.mkdir()
    links = json.dumps({"url": clone.as_uri(), "dir_info": {"editable": True}})
    for package in ("megatron_core-0.19.2", "megatron_bridge-0.6.2", "nemotron_sft-0.1.0"):
        information = tmp_path / "megatron" / "lib" / "python3.12" / "site-packages" / f"{package}.dist-info"
        information.mkdir(parents=True)
        (information / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package.partition('-')[0]}\nVersion: 1\n")
        if package.startswith("nemotron"):
            (information / "direct_url.json").write_text(links)
    monkeypatch.setenv("NEMOTRON_ENGINES", str(tmp_path))
    assert python_for_step("megatron_bridge") == str(tmp_path / "megatron" / "bin" / "python")
    clone.rmdir()
    capfd.readouterr()
    assert python_for_step("megatron_bridge") == sys.executable
    said = capfd.readouterr().err
    assert f"takes code from {clone}, which is gone; make it again: nemotron engine install megatron" in said


@pytest.mark.parametrize("rest", [["--dry-run"], [], ["run.nproc_per_node=2"]], ids=str)
@pytest.mark.parametrize(("engine", "own"), [("megatron_bridge", True), ("transformers", False)])
def test_a_command_starts_a_step_in_the_environment_of_its_engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engine: str, own: bool, rest: list[str]
) -> None:
    for package in ("megatron_core-0.19.2", "megatron_bridge-0.6.2"):
        information = tmp_path / "megatron" / "lib" / "python3.12" / "site-packages" / f"{package}.dist-info"
        information.mkdir(parents=True)
        (information / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package.partition('-')[0]}\nVersion: 1\n")
    monkeypatch.setenv("NEMOTRON_ENGINES", str(tmp_path))
    started: list[Sequence[str]] = []
    for run in ("run_process", "run_here"):  # the second for a dry run without another environment
        monkeypatch.setattr(f"nemotron_app.launch.{run}", lambda command: started.append(command) or 0)
    for step in (["pretrain"], ["data", "prep", "pretrain"]):
        assert main(["super3", *step, "-c", "tiny", f"engine={engine}", *rest]) == 0
    expected = str(tmp_path / "megatron" / "bin" / "python") if own else sys.executable
    assert [command[0] for command in started] == [expected, sys.executable]
