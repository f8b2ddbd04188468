"""Rules of `nemotron diagnose`, and how the first cause is chosen among many lines."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from nemotron_cluster.diagnose.causes import Diagnosis, Facts, diagnose, rules
from nemotron_cluster.diagnose.logs import HEAD, TAIL, read_logs

KEY = "hf_" + "a1B" * 12
OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
WATCHDOG = (
    "[Rank 4] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1, OpType=ALLREDUCE, Timeout(ms)=600000)"
)
REQUEUED = "slurmstepd: error: *** JOB 4711 ON n1 CANCELLED AT 2026-11-21T10:00:00 DUE TO JOB REQUEUE ***"


def of(folder: Path, **logs: str) -> Diagnosis:
    """What is said about logs."""
    for name, text in logs.items():
        (folder / f"{name}.log").write_text(text, encoding="utf-8")
    return diagnose(read_logs(folder), None)


def first_rule(line: str) -> str | None:
    return next((rule.id for rule in rules() if any(rule.lines(line))), None)


def test_the_example_of_each_rule_is_found_by_it_and_no_other(tmp_path: Path) -> None:
    known = rules()
    assert len({rule.id for rule in known}) == len(known) > 100
    for rule in known:
        assert rule.match and rule.do and rule.means.endswith("."), rule.id
        # a pattern must have something to search for that other lines do not have
        assert min(max(map(len, pattern.split("*"))) for pattern in rule.match) >= 4, rule.id
        assert first_rule(rule.example) == rule.id
        found = of(tmp_path, job=f"starting\n{rule.example}\nending\n").findings
        assert found[0].rule == rule
        assert (found[0].place, found[0].line, found[0].count) == ("job.log", 2, 1), rule.id


LINES = {
    "scheduler: state=TIMEOUT reason=None exit=0:15": "slurm-time-limit",
    "scheduler: state=OUT_OF_MEMORY reason=OutOfMemory exit=0:125": "oom-kill",
    "scheduler: state=NODE_FAIL reason=None exit=0:0": "slurm-node-fail",
    "scheduler: state=PREEMPTED reason=None exit=0:0": "slurm-preempted",
    "scheduler: state=FAILED reason=NonZeroExitCode exit=137:0": "killed",
    "scheduler: state=FAILED reason=NonZeroExitCode exit=139:0": "crashed",
    "scheduler: state=FAILED reason=NonZeroExitCode exit=130:0": "torchrun-stopped",
    "scheduler: state=FAILED reason=NonZeroExitCode exit=127:0": "command-not-found",
    "scheduler: state=FAILED reason=None exit=18:0": "torchrun-18",
    "srun: error: n1: task 0: Exited with exit code 18": "torchrun-18",
    "scheduler: state=FAILED reason=NonZeroExitCode exit=1:0": None,
    "scheduler: state=COMPLETED reason=None exit=0:0": None,
    # what looks alike and is something else
    "slurmstepd: error: pyxis:     tar: ./usr: Cannot write: No space left on device": "image-disk-full",
    "wandb: Network error (ConnectTimeout), entering retry loop.": "wandb-unreachable",
    "user@login: Permission denied (publickey,password).": "ssh-refused",
    "bash: ./train.sh: Permission denied": "no-permission",
    "sbatch: error: QOSMaxSubmitJobPerUserLimit": "slurm-too-many-jobs",
    "ModuleNotFoundError: No module named 'mamba_ssm.ops'": "mamba-missing",
    "ModuleNotFoundError: No module named 'custom_parallel'": "custom-parallel",
    "FileNotFoundError: [Errno 2] No such file or directory: '/c/iter_0/run_config.yaml'": "run-config-missing",
    "srun: error: n1: task 3: Out Of Memory": "oom-kill",
    # what is nothing
    "step 10 of 100  loss 2.31  oom 0  timeout 600": None,
    "Number of actors online: 256/256": None,
    "saving checkpoint step_60; no space is wasted": None,
}


def test_a_line_goes_to_the_special_rule() -> None:
    assert {line: first_rule(line) for line in LINES} == LINES


@pytest.mark.parametrize("why", ["Communication connection failure", "Unexpected missing socket error"])
def test_a_node_that_is_lost_while_a_step_starts_on_it_is_known(tmp_path: Path, why: str) -> None:
    said = f"""\
srun: error: Task launch for StepId=14.0 failed on node n2: {why}
srun: error: Application launch failed: {why}
srun: Job step aborted: Waiting up to 62 seconds for job step to finish.
slurmstepd-n1: error: *** STEP 14.0 ON n1 CANCELLED AT 2026-11-26T14:44:35 ***
srun: error: n1: task 0: Killed
"""
    found = of(tmp_path, job=said).findings
    assert found[0].rule.id == "slurm-node-fail", [one.rule.id for one in found]


def test_the_first_cause_in_time_comes_before_what_others_say_of_it(tmp_path: Path) -> None:
    logs = {f"rank{rank}": f"2026-11-21 10:10:{rank:02} waiting\n{WATCHDOG}\n" for rank in range(8)}
    logs["rank3"] = f"2026-11-21 10:00:00 step 7\n{OOM}\n{OOM}\n"
    logs["launcher"] = (
        "2026-11-21 10:10:30 x\nsrun: error: n1: task 3: Exited with exit code 1\nE exitcode  : 1 (pid: 1)\n"
    )
    found = of(tmp_path, **logs)
    ids = [one.rule.id for one in found.findings]
    assert ids[:2] == ["cuda-out-of-memory", "nccl-timeout"] and set(ids[2:]) == {"child-failed", "slurm-task-ended"}
    first, second = found.findings[:2]
    assert (first.place, first.line, first.count, first.files) == ("rank3.log", 2, 2, 1)
    assert (second.place, second.count, second.files) == ("rank0.log", 7, 7)
    assert found.failed and found.known


def test_of_two_causes_the_earlier_one_is_first(tmp_path: Path) -> None:
    early, late = "2026-11-21 10:00:00 [Errno 28] No space left on device", f"2026-11-21 10:00:09 {OOM}"
    assert of(tmp_path, a=f"{late}\n", b=f"{early}\n").findings[0].rule.id == "no-space"
    assert of(tmp_path, a=f"{OOM}\n{early}\n", b="").findings[0].rule.id == "cuda-out-of-memory"


def test_what_the_scheduler_knows_comes_first_where_it_is_a_cause(tmp_path: Path) -> None:
    (tmp_path / "log.txt").write_text(f"{OOM}\n")
    lost = Facts("failed", "sacct", exit_code=1)
    assert diagnose(read_logs(tmp_path), lost).findings[0].rule.id == "cuda-out-of-memory"
    cancelled = diagnose(read_logs(tmp_path), Facts("cancelled", "sacct", state="CANCELLED"))
    ids = [one.rule.id for one in cancelled.findings]
    assert ids == ["fact-cancelled", "cuda-out-of-memory"]
    assert lost.line == "scheduler: state=FAILED reason=None exit=1:0"


def test_what_was_before_a_restart_is_over(tmp_path: Path) -> None:
    found = of(tmp_path, log=f"{OOM}\n{REQUEUED}\ncontinuing from step 60\nstep 70\n")
    causes = [(one.rule.id, one.over) for one in found.findings if one.rule.level == "cause"]
    assert causes == [("cuda-out-of-memory", True)]
    assert not found.failed
    full = "OSError: [Errno 28] No space left on device"
    again = of(tmp_path, log=f"{OOM}\n{REQUEUED}\ncontinuing from step 60\n{full}\n")
    assert (again.findings[0].rule.id, again.findings[0].over) == ("no-space", False)


def test_an_error_of_ours_without_a_rule_brings_its_own_remedy(tmp_path: Path) -> None:
    found = of(
        tmp_path, log="0: starting\n0: error: train.lr: must be positive\n0:   set optimizer.lr above 0\n0: bye\n"
    )
    assert (found.findings[0].rule.id, found.findings[0].do) == ("own-message", ("set optimizer.lr above 0",))
    assert found.findings[0].line == 2


def test_the_source_lines_of_a_traceback_are_no_messages(tmp_path: Path) -> None:
    code = '    raise E("No space left on device")'
    log = f'Traceback (most recent call last):\n  File "/x.py", line 3, in f\n{code}\nx.Odd: no\n'
    found = of(tmp_path, log=log)
    assert [(one.rule.id, one.text) for one in found.findings] == [("unknown-exception", "x.Odd: no")]
    assert found.failed and not found.known


def test_a_log_without_failure_has_none(tmp_path: Path) -> None:
    found = of(tmp_path, log="step 1  loss 2.3\nstep 2  loss 2.2\nsaved\n")
    assert (found.findings, found.failed) == ((), False)
    (tmp_path / "log.log").write_text("step 1\nSomething failed in an unheard-of way\n")
    odd = diagnose(read_logs(tmp_path), None)
    assert odd.failed and not odd.known
    assert odd.last_lines() == ["step 1", "Something failed in an unheard-of way"]


def test_logs_of_earlier_jobs_are_left_out(tmp_path: Path) -> None:
    for number, text in (("4711", OOM), ("4712", "OSError: [Errno 28] No space left on device")):
        (tmp_path / f"slurm-{number}.out").write_text(f"{text}\n")
        os.utime(tmp_path / f"slurm-{number}.out", (int(number), int(number)))
    found = diagnose(read_logs(tmp_path), None)
    assert [one.rule.id for one in found.findings] == ["no-space"]
    assert found.logs.left_out == ("1 of earlier jobs left out",)


LAUNCHED = """
import sys, traceback
import train
def load(): raise ValueError("no such weights")
try:
    load()
except ValueError:
    traceback.print_exc()
    sys.exit(18)
"""


def test_the_first_traceback_of_a_process_that_torchrun_reports_is_shown(tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    (tmp_path / "main.py").write_text(LAUNCHED)
    command = [sys.executable, "-m", "nemotron_shared.engine.torchrun", "--nproc-per-node=2", tmp_path / "main.py"]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode
    found = of(tmp_path, job=f"starting\n{ran.stderr}srun: error: n1: task 0: Exited with exit code 1\n")
    assert found.findings[0].rule.id in ("torchrun-18", "unknown-exception")
    assert "torchrun-18" in {one.rule.id for one in found.findings}
    trace = found.traceback
    assert trace and trace.place == "job.log"
    assert trace.lines[0].startswith("Traceback") and trace.lines[-1] == "ValueError: no such weights"
    assert any("in load" in line for line in trace.lines)


def test_a_traceback_is_that_of_one_process_and_not_torchruns(tmp_path: Path) -> None:
    frames = "".join(f'  File "/x.py", line {number}, in f{number}\n    f()\n' for number in range(40))
    report = f"Traceback (most recent call last):\n{frames}torch.distributed.elastic.ChildFailedError: \n"
    of_rank = [
        f"[rank1]: {line}" for line in f"Traceback (most recent call last):\n{frames}x.Odd: {KEY}\n".splitlines()
    ]
    mixed = "\n".join(f"{line}\n[rank0]: waiting" for line in of_rank)
    found = of(tmp_path, job=f"{report}{mixed}\n  exitcode  : 18 (pid: 7) \n")
    assert found.traceback is not None
    assert found.traceback.lines[:2] == ("Traceback (most recent call last):", "  ...")
    assert found.traceback.lines[-2:] == ("    f()", "x.Odd: ***") and len(found.traceback.lines) == 15
    assert of(tmp_path, job=f"{report}  exitcode  : 18 (pid: 7) \n").traceback is None
    assert of(tmp_path, job="\n".join(of_rank)).traceback is None, "nothing reports it"


def test_of_a_large_log_both_ends_are_read(tmp_path: Path) -> None:
    line = "step 1 loss 2.3 and so on, for a long time\n"
    middle = line * ((HEAD + TAIL) // len(line) + 1000)
    (tmp_path / "log.txt").write_text(f"nothing\n{OOM}\n{middle}OSError: [Errno 28] No space left on device\n")
    found = diagnose(read_logs(tmp_path), None)
    assert {one.rule.id: one.line for one in found.findings} == {"cuda-out-of-memory": 2, "no-space": None}
    assert len(found.logs.texts[0].text) < HEAD + TAIL + 10


def test_a_line_without_end_takes_no_time_that_grows_with_its_square(tmp_path: Path) -> None:
    for word in ("error", "a", "(", "CUDA out of memory", "[rank0]: ", "error: x\n  y", "srun: error: : task "):
        (tmp_path / "log.txt").write_text(word * ((1 << 20) // len(word)))
        began = time.process_time()
        found = diagnose(read_logs(tmp_path), None)
        assert time.process_time() - began < 60, "minutes, where it is quadratic"
        assert all(len(one.text) < 1000 for one in found.findings)


def test_hostile_files_do_not_stop_it(tmp_path: Path) -> None:
    (tmp_path / "utf16.log").write_text(f"\n{OOM}\n", encoding="utf-16")
    (tmp_path / "latin.log").write_bytes(b"caf\xe9 \xff\xfe\x00 OSError: [Errno 28] No space left on device\n")
    (tmp_path / "colours.log").write_text(
        "\x1b[31mModuleNotFoundError\x1b[0m: No module named 'mamba_ssm'\x1b]0;title\x07\n"
    )
    (tmp_path / "bar.log").write_text(f"10%|#\r20%|##\r{WATCHDOG}\n")
    (tmp_path / "loop.log").symlink_to(tmp_path / "loop.log")
    (tmp_path / "out.log").symlink_to("/etc/passwd")
    (tmp_path / "around").symlink_to(tmp_path)
    os.mkfifo(tmp_path / "pipe.log")
    (tmp_path / "model.safetensors").write_bytes(OOM.encode())
    found = diagnose(read_logs(tmp_path), None)
    texts = {one.rule.id: one.text for one in found.findings}
    assert set(texts) == {"cuda-out-of-memory", "no-space", "mamba-missing", "nccl-timeout"}
    assert texts["nccl-timeout"] == WATCHDOG
    assert all(text.isprintable() for text in texts.values())
    assert {text.name for text in found.logs.texts} == {"utf16.log", "latin.log", "colours.log", "bar.log"}


def test_secrets_are_not_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "0123456789abcdef0123456789abcdef01234567")
    key, token = os.environ["WANDB_API_KEY"], "hf_" + "abcdefghijKLMNOPQRSTuvwxyz01234567"
    log = f"{'x ' * 1500}{token} {OOM} {key}\nTraceback (most recent call last):\nodd.Thing: {token} {key}\n"
    found = of(tmp_path, log=log)
    said = [*(one.text for one in found.findings), *found.last_lines()]
    assert len(found.findings) == 2
    assert not any(token in text or key in text for text in said)


PYTHON = {
    "mamba-missing": "import sys; sys.path = [p for p in sys.path if 'site-packages' not in p]; import mamba_ssm",
    "no-space": "open('/dev/full', 'w').write('x' * 100000)",
    "too-many-files": "import resource as r; r.setrlimit(7, (9, 9)); a = [open('/dev/null') for _ in 'x' * 9]",
    "port-in-use": "import socket as s; a = s.create_server(('', 0)); s.create_server(a.getsockname())",
    "cannot-allocate": "bytearray(1 << 60)",
    "no-permission": "import os; raise PermissionError(13, os.strerror(13), '/x')",
    "crashed": "import faulthandler, os; faulthandler.enable(); os.kill(os.getpid(), 11)",
    "not-divisible": "assert 100 % 64 == 0, 'global batch size (100) is not divisible by 64'",
    "own-code-missing": "import nemotron_nothing",
    "peer-gone": "import os; raise ConnectionResetError(104, os.strerror(104))",
    "hub-offline-miss": "from huggingface_hub import hf_hub_download as get; get('a/b', 'config.json', cache_dir='.')",
}
SHELL = {
    "command-not-found": "torchrun-of-nowhere train.py",
    "unbound-variable": "set -u; ls $WORKSPACE_OF_NOBODY",
    "bad-interpreter": "printf '#!/nowhere/python\\n' > x; chmod +x x; ./x",
    "killed": "sh -c 'kill -9 $$'",
}
TORCHRUN = {"torchrun-18": "import os; os._exit(18)", "module-missing": "import odd_package"}


@pytest.mark.parametrize("rule", [*PYTHON, *SHELL, *TORCHRUN])
def test_what_programs_really_say_is_known(rule: str, tmp_path: Path) -> None:
    script = tmp_path / "script"
    script.write_text(f"{PYTHON.get(rule) or TORCHRUN.get(rule) or SHELL[rule]}\n" + "exit 1\n" * (rule in SHELL))
    command = ["bash", script] if rule in SHELL else [sys.executable, script]
    if rule in TORCHRUN:
        command[1:1] = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=1"]
    environment = os.environ | {"HF_HUB_OFFLINE": "1"} | ({"PATH": "/usr/bin:/bin"} if rule in SHELL else {})
    with (tmp_path / "log.txt").open("w") as log:
        ran = subprocess.run(command, cwd=tmp_path, stdout=log, stderr=log, env=environment, check=False)
    assert ran.returncode != 0
    found = [one.rule.id for one in diagnose(read_logs(tmp_path / "log.txt"), None).findings]
    assert found[0] == rule
    assert rule not in TORCHRUN or "child-failed" in found[1:]
