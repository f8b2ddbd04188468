"""`airgap scripts`: what is written for a profile, that bash and shellcheck accept it, and what it does.

Changed on purpose: NEMOTRON_GOLDEN=1 writes the expected files anew.
"""

import os
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from jobs import write_programs

from nemotron_cluster.airgap.scripts import Layout, cuda_of, render_scripts, write_scripts
from nemotron_cluster.profiles import Slurm, load_profile
from nemotron_shared.system.errors import UserError

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
reservation = "weekend"
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

[debug]
extends = "site"
build_partition = "boost_usr_prod"
extra_directives = ["--nodelist=n[1-4]"]

[here]
executor = "local"
"""
LAYOUT = Layout(
    "/lustre/nemotron", "airgap", "automodel_env", ("--package", "nemotron-sft", "--cuda", "13"), ("9.0", "8.0"),
    ("-c", "configs/my data.yaml", "engine=automodel"), "nvcr.io/nvidia/nemo-rl:v0.7.0",
)  # fmt: skip
NAMES = ["setup_environment.sh", "build_mamba_deps.slurm", "test_training_simple.slurm", "train_automodel.slurm",
         "pull_container.slurm"]  # fmt: skip


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("NEMOTRON_ENV_FILE", raising=False)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "env.toml").write_text(PROFILES)
    return tmp_path


def test_the_scripts_of_a_profile(place: Path) -> None:
    found = render_scripts(load_profile("site"), LAYOUT)
    assert [*found] == NAMES
    if os.environ.get("NEMOTRON_GOLDEN"):
        write_scripts(found, GOLDEN)
        shutil.rmtree(GOLDEN.parent / "logs")
    assert found == {name: (GOLDEN / name).read_text() for name in NAMES}
    write_scripts(found, place / "scripts")
    assert (place / "logs" / "slurm").is_dir(), "Slurm does not make the folder of its logs"
    assert all(os.access(place / "scripts" / name, os.X_OK) for name in NAMES)


def options(text: str) -> dict[str, str]:
    """The options of sbatch that a script asks for."""
    lines = (line.removeprefix("#SBATCH --") for line in text.splitlines() if line.startswith("#SBATCH --"))
    return {name: value for name, _, value in (line.partition("=") for line in lines)}


def test_a_job_in_the_trainings_queue_keeps_to_its_limits(place: Path) -> None:
    found = render_scripts(load_profile("debug"), LAYOUT)
    build, pull = options(found["build_mamba_deps.slurm"]), options(found["pull_container.slurm"])
    assert (build["qos"], build["time"], build["gres"], build["cpus-per-task"]) == (
        "boost_qos_dbg", "00:30:00", "gpu:1", "8"
    )  # fmt: skip
    assert "mem" not in build and build["nodelist"] == "n[1-4]"
    assert "gres" not in pull and pull["time"] == "00:30:00"
    (place / "env.toml").write_text(PROFILES.replace('time = "00:30:00"', 'time = "1-0"\nbuild_time = "45"'))
    found = render_scripts(load_profile("debug"), LAYOUT)
    assert options(found["build_mamba_deps.slurm"])["time"] == "45"
    assert options(found["test_training_simple.slurm"])["time"] == "00:30:00"
    (place / "env.toml").write_text(PROFILES.replace('time = "00:30:00"', 'time = "10"'))
    found = render_scripts(load_profile("debug"), LAYOUT)
    assert {options(found[name])["time"] for name in NAMES[1:]} == {"10"}


def test_a_training_has_more_than_one_cpu(place: Path) -> None:
    text = PROFILES.replace("cpus_per_task = 32\n", "").replace('mem = "480G"\n', "")
    (place / "env.toml").write_text(text)
    found = {name: options(script) for name, script in render_scripts(load_profile("debug"), LAYOUT).items()}
    assert {name for name, asked in found.items() if "exclusive" in asked} == {"train_automodel.slurm"}
    assert found["train_automodel.slurm"]["mem"] == "0"
    assert found["test_training_simple.slurm"]["cpus-per-task"] == "8"
    (place / "env.toml").write_text(PROFILES.replace("cpus_per_task = 32", "cpus_per_task = 7\nntasks_per_node = 4"))
    train = options(render_scripts(load_profile("debug"), LAYOUT)["train_automodel.slurm"])
    assert train["cpus-per-task"] == "28" and "exclusive" not in train


def test_a_partition_without_gpus_is_told_what_to_compile_for(place: Path) -> None:
    with pytest.raises(UserError, match="the partition lrd_all_serial") as told:
        render_scripts(load_profile("site"), replace(LAYOUT, architectures=()))
    assert "--arch 8.0" in (told.value.remedy or "")
    assert render_scripts(load_profile("debug"), replace(LAYOUT, architectures=()))


@pytest.mark.parametrize(
    ("lines", "found"),
    [
        (["module load gcc/12.2.0 python/3.11.7", "export CUDA_HOME=/opt/compilers/cuda/12.6/none"], "12.6"),
        (["module load cuda/12.1", "module load CUDA/13.0.2"], "13.0"),
        (["module load cudatoolkit/12.2_11.7"], "12.2"),
        (["export PATH=/usr/local/cuda-12/bin:$PATH"], "12"),
        (["module load cuda", "# module load cuda/12.1", "module load cudnn/9.1.0"], None),
        ([], None),
    ],
)
def test_the_cuda_that_a_profile_loads_is_read(lines: list[str], found: str | None) -> None:
    read = cuda_of(Slurm(executor="slurm", setup_lines=lines))
    assert (read and read[1]) == found
    home = cuda_of(Slurm(executor="slurm", env_vars={"CUDA_HOME": "/opt/cuda/12.8"}))
    assert home == ("12", "12.8", "env_vars.CUDA_HOME")


ENROOT = """#!/usr/bin/env bash
[[ -d $ENROOT_CACHE_PATH ]] || exit 3
env | grep -q ^ENROOT_CACHE_PATH= || exit 4
echo "$*" >> calls
[[ ! -e $3 ]] || exit 5
echo half > "$3"
[[ ! -e refuse ]] || exit 6
"""


def test_an_image_is_imported_once_and_whole(place: Path) -> None:
    write_scripts(render_scripts(load_profile("site"), LAYOUT), place / "scripts")
    write_programs(place / "bin", {"enroot": ENROOT, "module": "#!/bin/sh\n"})
    environment = {**os.environ, "PATH": f"{place / 'bin'}:/usr/bin:/bin", "SLURM_JOB_ID": "7"}

    def pull(*words: str) -> tuple[int, list[str]]:
        command = ["bash", "scripts/pull_container.slurm", *words]
        code = subprocess.run(command, env=environment, check=False).returncode
        return code, sorted(path.name for path in place.glob("*.sqsh"))

    (place / "refuse").touch()
    assert pull() == (6, []), "half an image is no image"
    (place / "refuse").unlink()
    whole = ["nemo-rl.v0.7.0.sqsh"]
    assert pull() == (0, whole)
    assert pull() == (0, whole)
    asked = "import --output nemo-rl.v0.7.0.7.sqsh docker://nvcr.io#nvidia/nemo-rl:v0.7.0\n"
    assert (place / "calls").read_text() == 2 * asked, "what is there is not imported again"
    assert pull("--force") == (0, whole)
    assert (place / "calls").read_text() == 3 * asked


@pytest.mark.parametrize("profile", ["site", "odd"])
def test_bash_and_shellcheck_accept_them(place: Path, profile: str) -> None:
    for name, text in render_scripts(load_profile(profile), LAYOUT).items():
        assert subprocess.run(["bash", "-n"], input=text, text=True, check=False).returncode == 0, name
        if shutil.which("shellcheck"):
            checked = subprocess.run(["shellcheck", "-"], input=text, text=True, capture_output=True, check=False)
            assert checked.returncode == 0, f"{name}: {checked.stdout}"
    if not shutil.which("shellcheck"):
        pytest.skip("bash has read them; shellcheck is not here to judge them")


def test_values_stay_values(place: Path) -> None:
    train = render_scripts(load_profile("odd"), LAYOUT)["train_automodel.slurm"]
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
    write_scripts(render_scripts(load_profile("site"), LAYOUT), place / "scripts")
    programs, calls = place / "automodel_env" / "bin", place / "calls"
    stubs = {
        "python": f'[[ $1 != -c ]] || exit {0 if present else 1}\necho "python $*" >> {calls}',
        "nemotron": f'echo "nemotron $*" >> {calls}',
        "srun": 'while [[ $1 == --* ]]; do shift; done\nexec "$@"',
        "scontrol": "printf 'n1\\nn2\\n'",
        "module": ":",
    }
    write_programs(programs, {name: f"#!/usr/bin/env bash\n{text}\n" for name, text in stubs.items()})
    slurm = {"SLURM_JOB_NODELIST": "n[1-2]", "SLURM_JOB_ID": "7", "SLURM_NNODES": "2"}
    environment = {**os.environ, **slurm, "PATH": f"{programs}:/usr/bin:/bin"}
    # not as a login shell, whose files would take the PATH away
    command = ["bash", "scripts/train_automodel.slurm", "train.train_iters=3"]
    assert subprocess.run(command, env=environment, check=False).returncode == 0
    built = "nemotron airgap build airgap --target automodel_env --arch 9.0 --arch 8.0\n"
    trained = (
        "python -m nemotron_shared.engine.torchrun --nnodes=2 --nproc-per-node=4 --rdzv-id=7 --rdzv-backend=c10d "
        "--rdzv-endpoint=n1:20007 -m stages.sft.train -c configs/my data.yaml engine=automodel train.train_iters=3\n"
    )
    assert calls.read_text() == ("" if present else built) + trained


def test_a_profile_of_another_executor_is_refused(place: Path) -> None:
    with pytest.raises(UserError, match=r"\[here\] has the executor 'local'"):
        render_scripts(load_profile("here"), LAYOUT)
