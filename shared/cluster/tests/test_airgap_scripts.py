"""`airgap scripts`: what is written for a profile, that bash and shellcheck accept it, and what it does.

Changed on purpose: NEMOTRON_GOLDEN=1 writes the expected files anew.
"""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from nemotron_cluster.airgap.scripts import Layout, scripts, write_scripts
from nemotron_cluster.profiles.find import load_profile
from nemotron_shared.errors import UserError

GOLDEN = Path(__file__).parent / "golden" / "airgap"
PROFILES = """
[site]
executor = "slurm"
account = "IscrC_ABC"
partition = "boost_usr_prod"
build_partition = "lrd_all_serial"
qos = "boost_qos_dbg"
gpus_per_node = 4
gpus_option = "gres"
cpus_per_task = 32
mem = "480G"
time = "00:30:00"
build_time = "00:20:00"
setup_lines = ["module load gcc/12.2.0 python/3.11.7", 'export CUDA_HOME="/opt/cuda/13.0"']

[site.env_vars]
NCCL_DEBUG = "WARN"

[odd]
extends = "site"
account = "it's $(mine)"
gpus_per_node = 0
extra_directives = ["--nodelist=n[1-4]"]

[odd.env_vars]
TITLE = "two words; $(touch /tmp/no) 'x'"

[here]
executor = "local"
"""
LAYOUT = Layout(
    "/lustre/nemotron", "airgap", "automodel_env", ("--package", "nemotron-sft", "--cuda", "13"), ("9.0", "8.0"),
    ("-c", "configs/my data.yaml", "engine=automodel"),
)  # fmt: skip
NAMES = ["setup_environment.sh", "build_mamba_deps.slurm", "test_training_simple.slurm", "train_automodel.slurm"]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("NEMOTRON_ENV_FILE", raising=False)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "env.toml").write_text(PROFILES)
    return tmp_path


def test_the_scripts_of_a_profile(place: Path) -> None:
    found = scripts(load_profile("site"), LAYOUT)
    assert [*found] == NAMES
    if os.environ.get("NEMOTRON_GOLDEN"):
        write_scripts(found, GOLDEN)
        shutil.rmtree(GOLDEN.parent / "logs")
    assert found == {name: (GOLDEN / name).read_text() for name in NAMES}
    write_scripts(found, place / "scripts")
    assert (place / "logs" / "slurm").is_dir(), "Slurm does not make the folder of its logs"
    assert all(os.access(place / "scripts" / name, os.X_OK) for name in NAMES)


@pytest.mark.parametrize("profile", ["site", "odd"])
def test_bash_and_shellcheck_accept_them(place: Path, profile: str) -> None:
    for name, text in scripts(load_profile(profile), LAYOUT).items():
        assert subprocess.run(["bash", "-n"], input=text, text=True, check=False).returncode == 0, name
        if shutil.which("shellcheck"):
            checked = subprocess.run(["shellcheck", "-"], input=text, text=True, capture_output=True, check=False)
            assert checked.returncode == 0, f"{name}: {checked.stdout}"
    if not shutil.which("shellcheck"):
        pytest.skip("bash has read them; shellcheck is not here to judge them")


def test_values_stay_values(place: Path) -> None:
    train = scripts(load_profile("odd"), LAYOUT)["train_automodel.slurm"]
    assert '#SBATCH --account="it\'s $(mine)"' in train.splitlines()
    assert "#SBATCH --nodelist=n[1-4]" in train
    assert "gres" not in train, "no GPUs are asked for"
    head = train.partition("module load")[0]
    answer = subprocess.run(["bash", "-c", head + '\nprintf "%s|" "$TITLE" "${arguments[@]}"'], capture_output=True,
                            text=True, check=True)  # fmt: skip
    assert answer.stdout == "two words; $(touch /tmp/no) 'x'|-c|configs/my data.yaml|engine=automodel|"


@pytest.mark.parametrize("present", [True, False])
def test_training_compiles_first_where_the_packages_are_absent(
    place: Path, monkeypatch: pytest.MonkeyPatch, present: bool
) -> None:
    write_scripts(scripts(load_profile("site"), LAYOUT), place / "scripts")
    programs, calls = place / "automodel_env" / "bin", place / "calls"
    programs.mkdir(parents=True)
    stubs = {
        "python": f'[[ $1 != -c ]] || exit {0 if present else 1}\necho "python $*" >> {calls}',
        "nemotron": f'echo "nemotron $*" >> {calls}',
        "srun": 'while [[ $1 == --* ]]; do shift; done\nexec "$@"',
        "scontrol": "printf 'n1\\nn2\\n'",
        "module": ":",
    }
    for name, text in stubs.items():
        (programs / name).write_text(f"#!/usr/bin/env bash\n{text}\n")
        (programs / name).chmod(0o755)
    slurm = {"SLURM_JOB_NODELIST": "n[1-2]", "SLURM_JOB_ID": "7", "SLURM_NNODES": "2"}
    environment = {**os.environ, **slurm, "PATH": f"{programs}:/usr/bin:/bin"}
    # not as a login shell, whose files would take the PATH away
    command = ["bash", "scripts/train_automodel.slurm", "train.train_iters=3"]
    assert subprocess.run(command, env=environment, check=False).returncode == 0
    built = "nemotron airgap build airgap --target automodel_env --arch 9.0 --arch 8.0\n"
    trained = (
        "python -m nemotron_shared.runtime.torchrun --nnodes=2 --nproc-per-node=4 --rdzv-id=7 --rdzv-backend=c10d "
        "--rdzv-endpoint=n1:20007 -m stages.sft.train -c configs/my data.yaml engine=automodel train.train_iters=3\n"
    )
    assert calls.read_text() == ("" if present else built) + trained


def test_a_profile_of_another_executor_is_refused(place: Path) -> None:
    with pytest.raises(UserError, match=r"\[here\] has the executor 'local'"):
        scripts(load_profile("here"), LAYOUT)
