"""What the doctor says of a recipe: its size, the space of its files, the time, and what keeps it from starting."""

from pathlib import Path
from typing import Any

import pytest

from nemotron_app.doctor import Recipe, checks, read_recipe, request_of
from nemotron_app.launch import dry_run_of
from nemotron_cluster.profiles import Slurm
from nemotron_shared.artifacts import Store
from nemotron_shared.system.disk import size
from nemotron_shared.system.errors import UserError


def slurm(**values: Any) -> Slurm:
    return Slurm(**({"executor": "slurm", "nodes": 8, "gpus_per_node": 8, "time": "12:00:00"} | values))


def recipe(**values: Any) -> Recipe:
    engine = {"name": "nemo_rl", "container": "nemo-rl:v0.7.0", "num_nodes": 8, "gpus_per_node": 8}
    config = {"run": {"family": "super49b"}, "train": {"train_iters": 50}, "engine": engine}
    given: dict[str, Any] = {"family": "super49b", "stage": "sft", "config": "super49b", "values": config}
    return Recipe(**(given | {"problems": (), "disk_bytes": 0} | values))


def said(of: Recipe, profile: Slurm | None, home: Path) -> dict[str, tuple[str, str]]:
    return {check.name: (check.state, check.finding.message) for check in checks(of, profile, Store(home))}


def test_the_space_is_that_of_the_files_and_of_the_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEMOTRON_HOME", str(tmp_path / "store"))
    source = tmp_path / "mine.jsonl"
    source.write_text('{"messages": []}\n' * 1000)
    found = read_recipe(request_of("super3", "sft", "tiny", (f"data_prep.source={source}",), None))
    assert found.named_bytes == source.stat().st_size
    assert found.wanted_bytes == found.disk_bytes + found.named_bytes > 10**6
    assert "17.0 kB of files that the config names" in said(found, None, tmp_path)["space"][1]


def test_the_space_is_that_of_a_plan_and_the_guides_figure_is_told_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NEMOTRON_HOME", str(tmp_path / "store"))
    request = request_of("nano3", "rl", None, (), None)  # whose engine says nothing of a disk
    found, planned = read_recipe(request), dry_run_of("rl", request)["estimate"]["disk"]
    assert found.wanted_bytes == planned > found.guides_bytes == 200 * 10**9
    told = said(found, None, tmp_path)["space"][1]
    assert told.startswith(f"{size(planned)} in all: ") and told.endswith("the recipe's guide asks for 200.0 GB")


def test_a_folder_of_weights_counts_with_all_of_its_files(tmp_path: Path) -> None:
    (tmp_path / "model" / "deep").mkdir(parents=True)
    for name in ("a.safetensors", "deep/b.safetensors"):
        (tmp_path / "model" / name).write_bytes(bytes(500))
    config = {"run": {"model": str(tmp_path / "model"), "home": str(tmp_path)}}
    assert recipe(values=config).named_bytes == 1000
    assert recipe(values=config).wanted_bytes == 500 * 10**9  # its guide asks for more


def test_the_time_limit_is_held_against_the_expected_time(tmp_path: Path) -> None:
    assert said(recipe(), slurm(), tmp_path)["time"] == ("PASS", "12:00:00 for steps that take up to 4.0 h")
    state, what = said(recipe(), slurm(time="04:00:00", requeue=False), tmp_path)["time"]
    assert state == "WARN" and what.endswith("the job ends unfinished")
    assert said(recipe(), slurm(), tmp_path)["budget"][1].endswith("at most 768 GPU-hours a job")
    assert said(recipe(), slurm(time="0"), tmp_path)["time"] == ("PASS", 'no limit (time = "0")')
    assert "budget" not in said(recipe(), slurm(time="0"), tmp_path)
    assert "nodes" not in said(recipe(), slurm(), tmp_path)
    assert said(recipe(), slurm(nodes=4), tmp_path)["nodes"][0] == "WARN"


def test_what_keeps_the_dry_run_from_starting_is_a_failure_unless_the_files_are_elsewhere(tmp_path: Path) -> None:
    missing = recipe(problems=("run.model: there is no such folder\n  give run.model=FOLDER",))
    assert said(missing, slurm(), tmp_path)["dry run"] == ("FAIL", "run.model: there is no such folder")
    away = slurm(tunnel="ssh", host="login", remote_job_dir="/lustre/me")
    assert said(missing, away, tmp_path)["dry run, seen from this machine"][0] == "WARN"


def test_a_recipe_that_is_none_is_refused() -> None:
    with pytest.raises(UserError, match="did you mean 'super3'"):
        request_of("supr3", "sft", None, (), None)
    with pytest.raises(UserError, match="has no stage 'stf'"):
        request_of("super3", "stf", None, (), None)
    with pytest.raises(UserError, match="no config named 'nowhere'"):
        read_recipe(request_of("super3", "sft", "nowhere", (), None))
