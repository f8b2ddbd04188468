"""What NeMo Evaluator's launcher gets of a Slurm profile."""

from pathlib import Path
from typing import Any

import pytest

from nemotron_app.remote.place import last_save, left_out, settings
from nemotron_cluster.profiles import Loaded, Slurm

OF_OUR_JOBS = {
    "executor", "home", "nodes", "gpus_per_node", "nproc_per_node", "ntasks_per_node", "secrets", "container_image",
    "set", "packager", "packager_include_pattern", "run_partition", "batch_partition", "build_partition", "build_time",
    "launcher", "ray_sub", "tunnel",
}  # fmt: skip
"""Decided before, or about jobs that we write ourselves: the launcher writes its own, one for each task."""
OTHERS: dict[str, Any] = {
    "mem": "64G",
    "exclusive": False, "gpus_option": "none", "time": "01:00:00", "signal_lead": 60, "requeue": False,
    "container_runtime": "apptainer", "mounts": ["/data:/data"], "env_vars": {"A": "1"},
    "setup_lines": ["module load x"], "ssh_options": ["-v"], "extra_directives": ["--nodelist=n1"],
    "cpus_per_task": 3, "port": 23,
}  # fmt: skip
"""A value that is not the default, where text does not serve."""


def handed_over(**keys: Any) -> list[str]:
    where = {"tunnel": "ssh", "host": "login.invalid", "user": "me", "remote_job_dir": "/jobs"}
    profile = Slurm(executor="slurm", **where | keys)
    loaded = Loaded("far", profile, Path("env.toml"))
    return [*settings(loaded, "/store"), *left_out(profile)]


@pytest.mark.parametrize("key", [key for key in Slurm.model_fields if key not in OF_OUR_JOBS])
def test_each_key_is_handed_over_or_named_as_left_out(key: str) -> None:
    assert handed_over(**{key: OTHERS.get(key, "/other")}) != handed_over(), (
        f"a profile's {key} does not reach the launcher: hand it over in `settings` of nemotron_app/remote/place.py, "
        "list it in LEFT_OUT there, or, if it is about our own jobs alone, in OF_OUR_JOBS here; "
        "a key that is no text also needs a value in OTHERS"
    )


def test_a_job_without_a_limit_has_no_latest_time_to_save() -> None:
    assert last_save(Slurm(executor="slurm", time="2-00:00:00")) == "01:23:55:00"
    assert last_save(Slurm(executor="slurm", time="0")) is last_save(Slurm(executor="slurm", time="UNLIMITED")) is None
    assert any("walltime='00:00:00'" in str(said) for said in handed_over(time="UNLIMITED"))


def test_the_keys_of_our_own_jobs_are_keys() -> None:
    assert set(Slurm.model_fields) >= OF_OUR_JOBS | set(OTHERS)
