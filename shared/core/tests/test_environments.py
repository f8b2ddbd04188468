"""Environments of engines: found in their folder, whole or not at all, and what is said where one is missing."""

import sys
from pathlib import Path

import pytest

from nemotron_shared.machine import environments
from nemotron_shared.machine.environments import (
    ENVIRONMENTS,
    environment_of,
    how_to_get,
    python_for_step,
    repository,
)


def make(folder: Path, *packages: str) -> Path:
    """A folder as uv leaves it, with packages by name and version."""
    for package in packages:
        information = folder / "lib" / "python3.12" / "site-packages" / f"{package.replace('-', '_')}.dist-info"
        information.mkdir(parents=True)
        name, _, version = package.rpartition("-")
        (information / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    return folder


@pytest.fixture
def engines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("NEMOTRON_ENGINES", str(tmp_path))
    return tmp_path


def test_a_step_starts_in_the_environment_of_its_engine_and_says_so_in_one_line(
    engines: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = make(engines / "megatron", "megatron-core-0.19.2", "megatron-bridge-0.6.2")
    assert python_for_step("megatron_bridge") == str(folder / "bin" / "python")
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "engine 'megatron_bridge'" in said
    assert str(folder / "bin" / "python") in said


@pytest.mark.parametrize("engine", ["transformers", "automodel", "megatron_bridge", "nemo_evaluator", "of_a_plugin"])
def test_a_step_starts_here_where_the_engine_is_here_or_nowhere_or_is_called_as_a_program(
    engines: Path, capsys: pytest.CaptureFixture[str], engine: str
) -> None:
    make(engines / "megatron", "megatron-core-0.19.2")  # its other half is missing
    make(engines / "evaluator", "nemo-evaluator-0.2.8", "nemo-evaluator-launcher-0.2.6", "nvidia-lm-eval-26.3")
    assert python_for_step(engine) == sys.executable
    assert capsys.readouterr().err == ""


def test_a_step_stays_in_an_environment_that_has_its_engine(
    engines: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(engines / "automodel", "nemo-automodel-0.7.0", "triton-3.7.1")
    for name in ("nemo_automodel", "triton"):
        (tmp_path / f"{name}.py").touch()
    assert python_for_step("automodel") != sys.executable
    monkeypatch.syspath_prepend(str(tmp_path))
    assert python_for_step("automodel") == sys.executable


def test_the_remedy_is_to_install_or_to_start_it_where_it_is_installed(engines: Path) -> None:
    assert how_to_get("megatron_bridge").endswith("nemotron engine install megatron")
    assert how_to_get("trl").endswith("uv sync --all-packages")
    folder = make(engines / "megatron", "megatron-core-0.19.2", "megatron-bridge-0.6.2")
    assert how_to_get("megatron_bridge").endswith(str(folder / "bin" / "torchrun"))


def test_the_folder_is_in_the_repository_unless_another_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NEMOTRON_ENGINES", raising=False)
    environment = environment_of("automodel")
    assert environment is not None
    root = repository()
    assert environment.folder == (root / ".engines" / "automodel" if root else None)
    monkeypatch.setattr(environments, "__file__", str(tmp_path / "a" / "b" / "c" / "d" / "e" / "installed.py"))
    assert environment.folder is None
    assert environment.programs is None
    assert python_for_step("automodel") == sys.executable


def test_no_name_means_two_environments() -> None:
    names = [name for each in ENVIRONMENTS for name in {each.name, *each.engines}]
    assert len(names) == len(set(names))
