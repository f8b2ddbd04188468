"""What a job imports in a container that a recipe names is in that container.

A job brings our code along, and nothing that it needs. tests/containers.yaml has what each container holds.
"""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

PROGRAM = Path(__file__).parent / "programs" / "in_container.py"
CONTAINERS: list[dict[str, Any]] = yaml.safe_load((Path(__file__).parent / "containers.yaml").read_text("utf-8"))
ENGINES = {"nemo-rl": "nemo_rl", "megatron-bridge": "megatron_bridge"}
STAGES = Path(__file__).parent.parent / "stages"


def stages_by_image() -> dict[str, set[str]]:
    """The stages whose recipes name an image."""
    found: dict[str, set[str]] = {}
    for stage in ("pretrain", "sft", "rl", "eval"):
        for file in (STAGES / stage / "config").rglob("*.yaml"):
            for image in re.findall(r"^ *container: (nvcr\S+)", file.read_text("utf-8"), re.M):
                found.setdefault(image, set()).add(stage)
    return found


def in_container(container: dict[str, Any], folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    (folder / "allowed.json").write_text(json.dumps(container))
    command = [sys.executable, PROGRAM, folder / "allowed.json", *words]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


def test_every_image_that_a_recipe_names_is_known() -> None:
    named = stages_by_image()
    assert len(named) == 5
    assert set(named) == {image for container in CONTAINERS for image in container["images"]}


@pytest.mark.parametrize("project", ENGINES)
def test_jobs_import_only_what_every_container_of_their_engine_holds(project: str, tmp_path: Path) -> None:
    containers = [container for container in CONTAINERS if container["project"] == project]
    held = set.intersection(*(set(container["packages"]) for container in containers))
    stages = sorted(set().union(*(stages_by_image()[image] for each in containers for image in each["images"])))
    engine = ENGINES[project]
    modules = [f"stages.{stage}.{verb}" for stage in stages for verb in ("train", "data_prep")]
    modules += [f"nemotron_engines.{engine}.*", "nemotron_shared.engine.torchrun", "nemotron_cluster.slurm.ray_node"]
    modules += [f"stages.{stage}.engines.{engine}.*" for stage in stages if stage != "eval"]
    done = in_container(containers[0] | {"packages": sorted(held)}, tmp_path, *modules)
    assert done.stdout == "imported\n", done.stderr


def test_an_import_that_a_container_lacks_is_found(tmp_path: Path) -> None:
    lacking = CONTAINERS[0] | {"packages": [name for name in CONTAINERS[0]["packages"] if name != "pydantic"]}
    done = in_container(lacking, tmp_path, "stages.rl.data_prep")
    assert done.returncode and "No module named 'pydantic' in this container" in done.stderr


def test_data_made_in_a_container_has_the_same_bytes(tmp_path: Path) -> None:
    made = {}
    everything = {"packages": [*CONTAINERS[0]["packages"], "orjson", "zstandard", "fastokens", "gigatoken"]}
    for name, container in {"there": CONTAINERS[0], "here": CONTAINERS[0] | everything}.items():
        words = ["-c", "tiny", f"run.home={tmp_path / name}", "data_prep.synthetic_problems=200"]
        done = in_container(container, tmp_path, "stages.rl.data_prep", "--", *words)
        assert ("orjson is not installed" in done.stderr) == (name == "there"), done.stderr
        (manifest,) = (tmp_path / name).glob("artifacts/*/v1/manifest.json")
        made[name] = json.loads(manifest.read_text())["digest"]
    assert made["there"] == made["here"]
