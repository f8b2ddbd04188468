"""The doctor's checks against programs that stand in for a site's, with outputs as real ones print them."""

import json
import os
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from jobs import write_programs

from nemotron_cluster.doctor import machine, packages, probe
from nemotron_cluster.doctor import slurm as scheduler
from nemotron_cluster.doctor.report import Check, Group, on_all, summary, text_lines
from nemotron_cluster.profiles import Slurm, load_profile
from nemotron_cluster.transport import Here, transport_of
from nemotron_shared.system.errors import UserError

Program = Callable[[str, str], None]
SINFO = """batch*|up|7-00:00:00|30|gpu:h100:8(S:0-1)|idle
batch*|up|7-00:00:00|2|gpu:h100:8(S:0-1)|drained
debug|up|30:00|2|gpu:a100:4|mixed
shut|down|infinite|4|(null)|down*
"""
CONFIG = """Configuration data as of 2026-11-23T02:40:00
AuthInfo                = socket=/run/munge.socket,cred_expire=60
KillWait                = 30 sec
PreemptMode             = REQUEUE
ProctrackType           = proctrack/cgroup
SlurmctldParameters     = preempt_send_user_signal
SLURM_VERSION           = 23.11.4
"""
PARTITION = (
    "PartitionName=batch QoS=N/A MaxCPUsPerNode=UNLIMITED OverSubscribe=EXCLUSIVE JobDefaults=DefCpuPerGPU=8 "
    "DefMemPerCPU=8000 MaxMemPerNode=UNLIMITED"
)
QOS = "normal||||||gres/gpu=512|\nboost_qos_dbg|00:30:00|1|2|node=4|||\n"
DONE = "sbatch: Job 42 to start at 2026-11-23T03:00:00 using 64 processors on nodes n[1-8] in partition batch"
TORCH = {"version": "2.13.0+cu130", "cuda": "13.0", "available": True, "abi": True}
GPUS = {"each": ["NVIDIA H100 80GB HBM3, 81559 MiB"] * 8, "driver": "580.65.06"}


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Program:
    """Puts a script on PATH, before everything else."""
    folder = tmp_path / "bin"
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")

    def write(name: str, output: str) -> None:
        body = output.removeprefix("#!") if output.startswith("#!") else f"cat '{folder}/{name}.txt'"
        write_programs(folder, {name: f"#!/bin/sh\n{body}\n"})
        (folder / f"{name}.txt").write_text(output)

    return write


@pytest.fixture
def site(program: Program) -> Program:
    """A site where all is well."""
    program("sinfo", f'#!case "$*" in *%c*) printf "64|515000\\n32+|257000+\\n" ;; *) cat <<E\n{SINFO}E\n;; esac')
    program("scontrol", f'#!case "$2" in config) cat <<E\n{CONFIG}E\n;; *) echo "{PARTITION}" ;; esac')
    program(
        "sacctmgr", f'#!case "$*" in *assoc*) echo "demo||normal,boost_qos_dbg|normal" ;; *) printf "{QOS}" ;; esac'
    )
    program("squeue", "")
    program("srun", "      --container-image=[USER@][REGISTRY#]IMAGE[:TAG]|PATH\n")
    program("sbatch", f'#!echo "{DONE}" >&2')
    return program


def slurm(**values: Any) -> Slurm:
    given = {"partition": "batch", "account": "demo", "nodes": 8, "gpus_per_node": 8, "time": "12:00:00"}
    return Slurm(**({"executor": "slurm", "container_runtime": "pyxis"} | given | values))


def of(checks: Iterable[Check], *states: str) -> dict[str, str]:
    return {check.name: check.finding.message for check in checks if check.state in states}


def test_a_site_where_all_is_well_passes(site: Program) -> None:
    checks = list(scheduler.check_scheduler(slurm(), Here()))
    assert of(checks, "WARN", "FAIL", "SKIP") == {}
    passed = of(checks, "PASS")
    assert passed["partition batch"] == "30 of 32 nodes can be used"
    assert passed["requeue"] == "a job that is queued again waits 61 s before it can start"
    assert passed["a job like this"].startswith("would start at 2026-11-23T03:00:00")
    assert passed["resources of batch"] == (
        "nodes of 32 to 64 CPUs and 257,000 to 515,000 MB; DefMemPerCPU=8000 MB; "
        "OverSubscribe=EXCLUSIVE: every job gets whole nodes; JobDefaults=DefCpuPerGPU=8"
    )
    assert len(passed) == 9


@pytest.mark.parametrize(
    ("values", "name", "said"),
    [
        ({"partition": "bacth"}, "partition", "partition 'bacth' does not exist"),
        ({"partition": "shut"}, "partition shut", "is down"),
        ({"nodes": 33}, "partition batch", "has 32 nodes, and the profile asks for 33"),
        ({"partition": "debug", "nodes": 1, "time": "20"}, "partition debug", "its nodes have 4 GPUs"),
        ({"partition": "debug", "nodes": 1, "gpus_per_node": 4}, "partition debug", "jobs end after 30:00"),
        ({"account": "dem"}, "account", "has no account 'dem'"),
        ({"qos": "boost"}, "qos", "the account may not use 'boost'"),
        ({"qos": "boost_qos_dbg"}, "qos boost_qos_dbg", "MaxTRES is node=4, and the profile asks for 8"),
        ({"qos": "boost_qos_dbg", "nodes": 1}, "qos boost_qos_dbg", "jobs end after 00:30:00"),
    ],
)
def test_what_a_profile_asks_for_in_vain_is_a_failure(
    site: Program, values: dict[str, Any], name: str, said: str
) -> None:
    failed = of(scheduler.check_scheduler(slurm(**values), Here()), "FAIL")
    assert said in failed[name]


def test_nodes_that_are_drained_are_a_warning(site: Program) -> None:
    assert (
        "30 of 32 nodes can be used now"
        in of(scheduler.check_scheduler(slurm(nodes=31), Here()), "WARN")["partition batch"]
    )


def test_a_queue_that_takes_one_job_and_has_one_is_a_warning(site: Program) -> None:
    debug = slurm(qos="boost_qos_dbg", nodes=1, time="00:20:00")
    assert of(scheduler.check_scheduler(debug, Here()), "PASS")["qos boost_qos_dbg"].startswith("runs 1 job of a user")
    site("squeue", "17\n")
    warned = of(scheduler.check_scheduler(debug, Here()), "WARN")["qos boost_qos_dbg"]
    assert warned == "runs 1 job of a user, and you have 1 there: 17; the next one waits"


def test_what_slurm_does_to_jobs_is_told(site: Program) -> None:
    site("scontrol", "KillWait = 5 sec\nPreemptMode = REQUEUE\nProctrackType = proctrack/linuxproc\n")
    site("srun", "usage\n")
    site("sbatch", "#!echo 'allocation failure: Invalid qos specification' >&2; exit 1")
    checks = list(scheduler.check_scheduler(slurm(), Here()))
    assert set(of(checks, "WARN")) == {"KillWait", "PreemptMode", "ProctrackType"}
    failed = of(checks, "FAIL")
    assert failed == {"pyxis": "srun has no --container-image",
                      "a job like this": "Slurm refuses the job here: Invalid qos specification"}  # fmt: skip


NOISE = {
    "nothing": "true",
    "an error": "echo 'slurm_load_partitions: Unable to contact slurm controller' >&2; exit 1",
    "noise": "head -c 4000 /dev/urandom",
    "bars": r"printf '|||||\n|||||||\na|b|c|d|e|f\n\033[2Jx|up|1|9|gpu:9|idle\n'",
    "an end by a signal": "kill -9 $$",
}


@pytest.mark.parametrize("noise", NOISE.values(), ids=NOISE.keys())
def test_no_answer_of_a_scheduler_ends_in_a_traceback(program: Program, noise: str) -> None:
    for name in ("sinfo", "scontrol", "sacctmgr", "squeue", "srun", "sbatch", "id"):
        program(name, f"#!{noise}")
    checks = list(scheduler.check_scheduler(slurm(), Here()))
    assert of(checks, "FAIL")
    assert all(line.isprintable() for line in text_lines(checks) for line in line.splitlines())


def test_where_no_slurm_answers_nothing_is_said_of_the_profile(program: Program) -> None:
    for name in ("sinfo", "scontrol", "sacctmgr", "squeue", "srun", "sbatch", "id"):
        program(name, f"#!echo '{name}: fatal: Could not establish a configuration source' >&2; exit 1")
    failed = of(scheduler.check_scheduler(slurm(container_runtime=None), Here()), "FAIL")
    assert {"partition", "settings", scheduler.LIKE_THIS} <= set(failed)
    assert {failed[name] for name in ("partition", "settings", scheduler.LIKE_THIS)} == {
        "no Slurm answers here: fatal: Could not establish a configuration source"
    }


def test_without_any_program_everything_is_said_and_nothing_raised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bash").symlink_to("/bin/bash")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "'sinfo' is not on this machine" in of(scheduler.check_scheduler(slurm(), Here()), "FAIL")["partition"]
    checks = list(machine.check_machine(slurm(), tmp_path, 0, online=False, environment={}))
    assert set(of(checks, "FAIL")) == {"sbatch", "srun", "squeue", "scontrol", "sinfo"}
    assert {"uv", "git"} <= set(of(checks, "WARN"))


@pytest.mark.parametrize(
    ("limit", "expected"),
    [
        ("60", 60),
        ("30:00", 30),
        ("12:00:00", 720),
        ("1-00", 1440),
        ("7-12:30:00", 10830),
        ("infinite", None),
        ("0", None),
        ("0:00", None),
        ("UNLIMITED", None),
        ("n/a", None),
    ],
)
def test_time_limits_are_read_as_slurm_reads_them(limit: str, expected: float | None) -> None:
    assert scheduler.minutes(limit) == expected


def facts(**changes: Any) -> dict[str, Any]:
    """What the probe says of a node on which all is well."""
    canary = {"rank": 0, "wrote": 0.01, "ahead": 0.0, "seen": 2,
              "names": {"n1": {"address": "10.0.0.1", "back": "n1", "seconds": 0.01}}}  # fmt: skip
    folder = {"at": "/lustre/me", "exists": True, "free": 10**12, "writable": True, "kind": "lustre"}
    usual = {"host": "n1", "python": "3.11.7", "nofile": 65536, "memory": 10**12, "gpus": GPUS, "nvcc": "13.0",
             "packages": {"torch": "2.13.0"}, "imports": {"torch": TORCH}, "bytecode": None, "canary": canary,
             "folders": {"/lustre/me": folder}, "programs": {}}  # fmt: skip
    return usual | changes


GROUP = Group("packages")


@pytest.mark.parametrize(
    ("changes", "name", "said"),
    [
        ({"python": "3.9.1"}, "Python", "3.9.1: the packages are for 3.11"),
        ({"imports": {"torch": {"error": "ImportError: libcudart.so.12", "absent": False}}}, "PyTorch", "libcudart"),
        ({"imports": {"torch": TORCH | {"available": False}}, "gpus": GPUS | {"driver": "535.54.03"}},
         "CUDA", "driver 535.54.03 is too old for CUDA 13.0, which needs 580"),
        ({"imports": {"torch": TORCH | {"available": False, "cuda": None}}}, "CUDA", "made for CPUs only"),
        ({"imports": {"torch": TORCH | {"available": False}}, "gpus": {"error": "Driver/library version mismatch",
          "absent": False}}, "CUDA", "nvidia-smi says: Driver/library version mismatch"),
        ({"imports": {"torch": TORCH, "mamba_ssm": {"error": "undefined symbol: _ZN3c10", "absent": False}}},
         "mamba_ssm", "undefined symbol"),
    ],
)  # fmt: skip
def test_what_keeps_packages_from_working_is_a_failure(changes: dict[str, Any], name: str, said: str) -> None:
    checks = list(packages.check_packages(GROUP, facts(**changes), [], None))
    assert said in of(checks, "FAIL")[name]
    assert all(check.finding.remedy for check in checks if check.state == "FAIL")


def test_a_kernel_that_is_missing_on_a_gpu_names_the_wheel_that_fits() -> None:
    absent = {"error": "ModuleNotFoundError: No module named 'mamba_ssm'", "absent": True}
    checks = list(
        packages.check_packages(GROUP, facts(imports={"torch": TORCH, "mamba_ssm": absent}, nvcc="12.6"), [], None)
    )
    assert "mamba_ssm" in of(checks, "SKIP")
    assert "PyTorch is made for 13.0" in of(checks, "WARN")["nvcc"]
    checks = list(packages.check_packages(GROUP, facts(imports={"torch": TORCH, "mamba_ssm": absent}), [], "automodel"))
    (remedy,) = [check.finding.remedy for check in checks if check.name == "mamba_ssm"]
    assert remedy and "cu13torch2.13cxx11abiTRUE-cp311" in remedy


def test_versions_are_compared_with_the_pins() -> None:
    pinned = packages.pins("automodel")
    names = {one.name for one in pinned}
    assert {"nemo-automodel", "torch", "pyarrow"} <= names
    assert not names & {"lm-eval", "trl", "uvicorn", "starlette"}, "other stages have environments of their own"
    assert {"lm-eval", "trl", "uvicorn"} <= {one.name for one in packages.pins(None)}
    versions = {one.name.lower().replace("_", "-"): "0.0.1" for one in pinned}
    (check,) = [
        one
        for one in packages.check_packages(GROUP, facts(packages=versions), pinned, "automodel")
        if one.name == "versions"
    ]
    assert check.state == "FAIL" and "nemo-automodel==0.7.0 (0.0.1)" in check.finding.message
    assert check.finding.remedy == "make its environment: nemotron engine install automodel"
    assert of(packages.check_packages(GROUP, facts(), [], None), "SKIP")["versions"]


def test_modules_without_bytecode_are_a_warning() -> None:
    bytecode = {"package": "ray", "looked": 300, "missing": 299, "kind": "nfs4"}
    assert (
        "on a shared file system"
        in of(packages.check_packages(GROUP, facts(bytecode=bytecode), [], None), "WARN")["bytecode"]
    )


def test_a_package_that_crashes_or_hangs_is_a_fact(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "crashes.py").write_text("import os; os.abort()")
    (tmp_path / "hangs.py").write_text("import time; time.sleep(3600)")
    (tmp_path / "talks.py").write_text("print('nemotron-doctor hello {')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    asked = {"imports": ["crashes", "hangs", "talks", "nowhere"], "patience": 10}
    imports = packages.probe_here(sys.executable, asked)["imports"]
    assert "exit code -6" in imports["crashes"]["error"]
    assert "no answer within 10 s" in imports["hangs"]["error"]
    assert imports["talks"] == {}
    assert imports["nowhere"] == {"error": "ModuleNotFoundError: No module named 'nowhere'", "absent": True}
    assert "No such file" in packages.probe_here("/nowhere/python", {})["error"]


def test_answers_are_put_together_from_lines_of_several_nodes() -> None:
    texts = {"n1/0": json.dumps(facts()), "n2/1": json.dumps(facts(host="n2"))}
    pieces = [[f"Loading module\033[0m {probe.MARK} {who} {text[at : at + 100]}" for at in range(0, len(text), 100)]
              for who, text in texts.items()]  # fmt: skip
    lines = [line for pair in zip(*pieces, strict=True) for line in pair]
    assert [each["host"] for each in packages.facts_in("\n".join(["noise", *lines]))] == ["n1", "n2"]
    assert packages.facts_in("\n".join(lines[:-1])) == [facts()]
    assert packages.facts_in(f"{probe.MARK} n1/0 [1]\n{probe.MARK}\n{probe.MARK} x") == []


def test_what_nodes_have_in_common_is_said_once() -> None:
    canary = facts()["canary"]
    slow = {"n1": {"address": "10.0.0.1", "back": "n1", "seconds": 25.1}}
    other = facts(
        host="n2", gpus={"each": GPUS["each"][:7], "driver": "580"}, canary=canary | {"rank": 1, "names": slow}
    )
    checks = list(scheduler.check_nodes(slurm(nodes=2), [facts(), other], [], None, ("/lustre/me", 10**9)))
    found = {(check.state, check.name): check.finding.message for check in checks}
    assert found["PASS", "GPUs"] == "8 x NVIDIA H100 80GB HBM3, 81559 MiB (n1)"
    assert found["FAIL", "GPUs"].startswith("8 wanted, found: 7 x NVIDIA H100") and "(n2)" in found["FAIL", "GPUs"]
    assert found["PASS", "shared folder"] == "files of all 2 nodes are seen (all 2)"
    assert "take 25 s to look up" in found["WARN", "names"]
    assert found["PASS", "disk"].endswith("1.0 GB are wanted (all 2)")


@pytest.mark.parametrize(
    ("changes", "state", "name", "said"),
    [
        ({"canary": {"rank": 0, "error": "Permission denied"}}, "FAIL", "shared folder", "Permission denied"),
        ({"canary": facts()["canary"] | {"seen": 1}}, "FAIL", "shared folder", "files of 1 of 2 nodes"),
        ({"canary": facts()["canary"] | {"ahead": -40.0}}, "WARN", "clock", "40 s behind"),
        ({"canary": facts()["canary"] | {"wrote": 9.0}}, "WARN", "shared folder's speed", "up to 9.0 s"),
        ({"canary": facts()["canary"] | {"names": {"n1": {"error": "unknown host", "seconds": 0}}}},
         "WARN", "names", "n1 cannot be looked up both ways: unknown host"),
        ({"folders": {"/lustre/me": {"error": "Stale file handle"}}}, "FAIL", "folder", "Stale file handle"),
        ({"nofile": 1024}, "WARN", "open files", "at most 1024"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_node_is_told(changes: dict[str, Any], state: str, name: str, said: str) -> None:
    checks = scheduler.check_nodes(slurm(nodes=2), [facts(**changes)], None, None, ("/lustre/me", 1))
    assert said in of(checks, state)[name]


def test_nodes_that_do_not_answer_are_told(site: Program, tmp_path: Path) -> None:
    def ask() -> list[Check]:
        return [scheduler.probe_nodes(slurm(nodes=2), Here(), "python3", tmp_path / "jobs", {}, 5)[1]]  # ty: ignore

    site("srun", "#!echo 'srun: error: Unable to allocate resources: Requested nodes are busy' >&2; exit 1")
    assert "not free within 5 s" in of(ask(), "WARN")["srun"]
    site("srun", "#!echo 'slurmstepd: error: execve(): python3: No such file or directory' >&2; exit 2")
    assert "0 of 2 answered: slurmstepd: error: execve()" in of(ask(), "FAIL")["srun"]
    assert list((tmp_path / "jobs").iterdir()) == []  # the canary's folder is gone


@pytest.mark.parametrize(
    ("environment", "state", "name"),
    [
        ({"HF_TOKEN": "hf_" + "a1B" * 12}, "PASS", "HF_TOKEN"),
        ({"HF_TOKEN": "secret"}, "FAIL", "HF_TOKEN"),
        ({}, "WARN", "HF_TOKEN"),
        ({"WANDB_API_KEY": "0123456789" * 4}, "PASS", "WANDB_API_KEY"),
        ({"WANDB_API_KEY": "mine"}, "WARN", "WANDB_API_KEY"),
        ({"https_proxy": "http://me:word@proxy:3128"}, "WARN", "proxy"),
        ({"https_proxy": "http://proxy:3128", "NO_PROXY": "localhost,127.0.0.1"}, "PASS", "proxy"),
    ],
)
def test_tokens_and_proxies(tmp_path: Path, environment: dict[str, str], state: str, name: str) -> None:
    environment = {"HF_HOME": str(tmp_path)} | environment
    checks = list(machine.check_machine(None, tmp_path, 0, online=False, environment=environment))
    assert name in of(checks, state)
    shown = "\n".join(text_lines(checks))
    assert "word" not in shown and "secret" not in shown and "a1Ba1B" not in shown


def test_a_token_that_others_can_read_is_a_warning(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("hf_" + "a1B" * 12)
    (tmp_path / "token").chmod(0o644)
    checks = machine.check_machine(None, tmp_path, 0, online=False, environment={"HF_HOME": str(tmp_path)})
    assert "can be read by others" in of(checks, "WARN")["HF_TOKEN"]


def test_a_store_that_cannot_be_or_is_too_small_is_a_failure(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    failed = of(machine.check_machine(None, tmp_path / "file" / "store", 0, online=False, environment={}), "FAIL")
    assert "cannot be written" in failed["store"]
    failed = of(machine.check_machine(None, tmp_path, 10**18, online=False, environment={}), "FAIL")
    assert "1,000,000,000.0 GB are wanted" in failed["disk"]


def test_a_profile_is_held_against_the_machine_that_it_names(tmp_path: Path, program: Program) -> None:
    key = tmp_path / "key"
    key.touch(mode=0o644)
    (tmp_path / "env.toml").write_text(
        f"""[there]
executor = "slurm"
tunnel = "ssh"
host = "login"
remote_job_dir = "{tmp_path}/jobs"
home = "$SCRATCH/store"
identity = "{key}"
ray_sub = "{tmp_path}/ray.sub"
mounts = ["{tmp_path}/nowhere:/data"]
env_vars = {{ HF_TOKEN = "hf_planted" }}
"""
    )
    program("ssh", '#!while [ "$1" != -- ]; do shift; done; shift; eval "$*"')
    loaded = load_profile("there", tmp_path)
    checks = list(machine.check_profile(loaded, transport_of(loaded.profile)))
    failed, warned = of(checks, "FAIL"), of(checks, "WARN")
    assert set(failed) == {"env_vars", "identity", "ray_sub"}
    assert f"env.toml:8 [there]: {tmp_path}/ray.sub does not exist on login" == failed["ray_sub"]
    assert set(warned) == {"home", f"mounts {tmp_path}/nowhere"}
    assert of(checks, "PASS")["remote_job_dir"] == f"{tmp_path}/jobs (not there yet, and can be made)"
    assert "hf_planted" not in "\n".join(text_lines(checks))
    program("ssh", "#!echo 'ssh: connect to host login port 22: Connection refused' >&2; exit 255")
    assert "cannot be reached" in of(machine.check_profile(loaded, transport_of(loaded.profile)), "FAIL")["login"]


def test_lines_are_grouped_and_counted() -> None:
    group, other = Group("one"), Group("two")
    found = [group.ok("a", "fine"), group.fail("b", "bad\033[2J", "do this\nthen that"), other.skip("c", "no")]
    lines = list(text_lines(found))
    assert lines == ["one", "  PASS  a: fine", "  FAIL  b: bad\\x1b[2J", "        do this", "        then that",
                     "\ntwo", "  SKIP  c: no"]  # fmt: skip
    assert summary(found) == "1 FAIL, 1 PASS, 1 SKIP"
    assert [check.finding.message for check in on_all({"n1": found[:1], "n2": found[:1]})] == ["fine (all 2)"]

    def ends() -> Any:
        yield found[0]
        raise UserError("it broke")

    assert [check.state for check in group.guarded("x", ends)] == ["PASS", "FAIL"]
