"""The engine with the real NeMo-RL, as far as a machine without a GPU goes: up to the placement of the first worker.

Needs what test_nemo_rl_accepts.py needs.
"""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

pytestmark = pytest.mark.nemo_rl

SYNTHETIC = (
    "data_prep.source=synthetic",
    "data_prep.placeholder_sources={dapo: null, skywork: null}",  # the recipes' are on the hub
    "run.missing_data=prepare",
    "run.missing_model=random",
    "model.architecture=super3_tiny",
)
ROWS = ("data_prep.synthetic_problems=264", "data_prep.holdout.rows=8")  # no recipe's step has more prompts than 256
Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """The rl stage with the engine, in an empty folder with a store of its own."""
    folder = os.environ.get("NEMO_RL_CHECKOUTS")
    if folder is None:
        pytest.fail("set NEMO_RL_CHECKOUTS to a folder with the checkouts v0.7.0 and nano-v3")

    def call(recipe: str, *overrides: str, version: str = "v0.7.0", **variables: str) -> subprocess.CompletedProcess:
        engine = [f"engine.checkout={folder}/{version}", "engine.runner=python"]
        command = [sys.executable, "-m", "stages.rl.train", "-c", recipe, *engine, *SYNTHETIC, *ROWS, *overrides]
        own = {"NEMOTRON_HOME": str(tmp_path / "home"), "NO_VCS_VERSION": "1", "PERSISTENT_CACHE": str(tmp_path)}
        # a cluster that someone else started on this machine is none of ours
        environment = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"} | own | variables
        return subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)

    return call


CASES = [
    ("tiny", "v0.7.0", ("engine=nemo_rl",)),
    ("super3", "v0.7.0", ()),
    ("super3_rlvr", "v0.7.0", ()),
    ("super3_swe2", "v0.7.0", ("engine.overrides.sif_dir=/images",)),
    ("nano3", "nano-v3", ()),
]


@pytest.mark.parametrize(("recipe", "version", "overrides"), CASES)
def test_without_a_gpu_config_tokenizer_and_rows_go_through_nemo_rls_own_code(
    run: Run, recipe: str, version: str, overrides: tuple[str, ...]
) -> None:
    done = run(recipe, "engine.stop_before_training=true", *overrides, version=version)
    assert done.returncode == 0, done.stderr
    assert "reads 256 rows to train and 8 to validate" in done.stderr
    assert "nothing is published" in done.stderr


def test_rows_and_servers_of_an_environment_go_to_nemo_gym(run: Run, tmp_path: Path) -> None:
    done = run("drawers_nemo_rl", "engine.stop_before_training=true", "data_prep.source=synthetic:drawers")
    assert done.returncode == 0, done.stderr
    assert "reads 256 rows to train" in done.stderr
    (written,) = (tmp_path / "home" / "runs").glob("nano3-rl-model-*/nemo_rl.yaml")
    (*_, file) = yaml.safe_load(written.read_text())["env"]["nemo_gym"]["config_paths"]
    (folder,) = yaml.safe_load(Path(file).read_text())["drawers"]["resources_servers"]
    assert (Path(folder) / "app.py").is_file()


def test_without_a_gpu_training_stops_with_one_clear_error(run: Run) -> None:
    done = run("tiny", "engine=nemo_rl", "engine.gpus_per_node=2")
    assert done.returncode == 2
    assert "error: NeMo-RL needs 2 GPUs here (1 nodes x 2: engine.num_nodes, engine.gpus_per_node)" in done.stderr
    assert "has 0" in done.stderr
    assert "Traceback" not in done.stderr


def test_its_own_driver_comes_up_to_placement_with_the_config_we_write(run: Run, tmp_path: Path) -> None:
    run("tiny", "engine=nemo_rl", "engine.stop_before_training=true")
    (file,) = (tmp_path / "home" / "runs").glob("super3-rl-model-*/nemo_rl.yaml")
    checkout = Path(os.environ["NEMO_RL_CHECKOUTS"]) / "v0.7.0"
    own = {"PYTHONPATH": str(checkout), "NO_VCS_VERSION": "1", "NEMO_RL_PY_EXECUTABLES_SYSTEM": "1"}
    own |= {"NRL_VIRTUAL_CLUSTER_MAX_RETRIES": "1", "RAY_USAGE_STATS_ENABLED": "0"}
    command = [sys.executable, "examples/run_grpo.py", "--config", str(file)]
    done = subprocess.run(command, cwd=checkout, env=os.environ | own, capture_output=True, text=True, check=False)
    said = done.stdout + done.stderr
    assert "ResourceInsufficientError" in said, said[-3000:]
    assert "Requested 1 GPUs, but only 0" in said
    assert "256 samples" in said  # its training data loader has our rows


def test_a_model_folder_with_code_is_refused_until_it_is_allowed(run: Run, tmp_path: Path) -> None:
    run("tiny", "engine=nemo_rl", "engine.stop_before_training=true")
    (model,) = (tmp_path / "home" / "runs").glob("super3-rl-model-*/random_model")
    (model / "config.json").write_text('{"model_type": "nemotron_h"}')
    (model / "model.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")
    (model / "modeling_own.py").write_text("raise SystemExit('this must not run')")
    done = run("tiny", "engine=nemo_rl", "engine.stop_before_training=true", f"run.model={model}")
    assert done.returncode == 2
    assert "holds Python files that NeMo-RL would run: modeling_own.py" in done.stderr
