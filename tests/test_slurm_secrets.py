"""A token that is set where jobs are submitted, searched wherever somebody else could read it."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from slurm_jobs import Desk
from slurm_support import Cluster
from support import short

pytestmark = pytest.mark.slow

TOKEN = "hf_PlantedButNeverShown0123456789abcdef"
EVERY_SECONDS = 0.2


def files_with_token(folder: Path) -> list[str]:
    """Every file below a folder that holds the token, with its mode."""
    found = []
    for path in folder.rglob("*"):
        if path.is_file() and not path.is_symlink():
            try:
                if TOKEN.encode() in path.read_bytes():
                    found.append(f"{path.relative_to(folder)} {path.stat().st_mode & 0o777:o}")
            except FileNotFoundError:  # gone since it was listed
                continue
    return found


@contextmanager
def watched_command_lines() -> Iterator[list[str]]:
    """Every command line that holds the token, of all processes of the machine and so of all nodes."""
    found: list[str] = []
    over = threading.Event()

    def watch() -> None:
        while not over.wait(EVERY_SECONDS):
            for path in Path("/proc").glob("[0-9]*/cmdline"):
                try:
                    line = path.read_bytes()
                except OSError:
                    continue
                if TOKEN.encode() in line:
                    found.append(line.decode(errors="replace"))

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield found
    finally:
        over.set()
        thread.join()


def test_a_planted_token_is_nowhere(accounting_slurm: Cluster, tmp_path: Path) -> None:
    slurm = accounting_slurm
    desk, said = Desk(slurm, tmp_path.name), ""
    with watched_command_lines() as lines:
        for words in (
            ("data", "prep", "sft", "-c", "tiny", "--sample", "60", "--run", "test-slurm"),
            ("sft", *short("sft"), "--run", "test-slurm"),
            ("sft", *short("sft"), "--force", "run.env.launcher=srun", "--run", "test-slurm"),
            ("sft", *short("sft"), "--run", "test-slurm", "--dry-run"),
            ("sft", *short("sft"), "--stage", "test-slurm"),
            ("sft", *short("sft"), "optimizer.lr=1e30", "run.env.nodes=1", "--run", "test-slurm"),  # fails
        ):
            result = desk.run("super3", *words, PLANTED_TOKEN=TOKEN, HF_TOKEN=TOKEN)
            said += result.stdout + result.stderr
        later = "run.env.extra_directives=[--begin=now+1hour]"
        waiting = desk.batch("super3", "sft", *short("sft"), later, HF_TOKEN=TOKEN)
        held = desk.job(waiting) / "secrets" / "env"
        assert held.stat().st_mode & 0o777 == 0o600 and held.parent.stat().st_mode & 0o777 == 0o700
        script = slurm.run("head", "scontrol", "write", "batch_script", waiting, "-").stdout
        assert "#SBATCH" in script
        recorded = slurm.run("head", "scontrol", "show", "job", "--details").stdout
        recorded += slurm.run("head", "sacct", "--allusers", "--parsable2", "--format=ALL").stdout
        assert waiting in recorded
        assert desk.run("jobs", "cancel", waiting).returncode == 0
    assert TOKEN not in said + script + recorded
    assert lines == []
    assert files_with_token(slurm.folder) == [next(iter(files_with_token(slurm.folder)), "")], "only what was laid out"
    (laid_out,) = files_with_token(slurm.folder)
    assert laid_out.endswith("secrets/env 600")
    used = "started on n1,n2"
    assert said.count(used) >= 2, said


def test_a_chain_that_is_cancelled_leaves_none(slurm: Cluster, tmp_path: Path) -> None:
    desk = Desk(slurm, tmp_path.name)
    later = ("run.env.nodes=1", "run.env.extra_directives=[--begin=now+1hour]")
    words = ("super3", "pipeline", "-c", "tiny", *later, "--batch", "test-slurm")
    told = desk.run(*words, HF_TOKEN=TOKEN)
    assert told.returncode == 0, told.stderr
    assert len(files_with_token(desk.folder)) == 8  # the report needs none
    first = told.stdout.split("submitted job ")[1].split()[0]
    assert f"end it: nemotron jobs cancel {first}" in told.stdout
    ended = desk.run("jobs", "cancel", first)
    assert "and 8 that wait for it" in ended.stdout, ended.stdout + ended.stderr
    assert files_with_token(desk.folder) == []
    slurm.wait_until(lambda: not slurm.checked("head", "squeue", "-h"))
    assert desk.run("jobs").stdout.count("cancelled") == 9 * 2  # state and sentence


def test_a_job_that_is_cancelled_by_hand_leaves_none_when_it_is_looked_at(slurm: Cluster, tmp_path: Path) -> None:
    desk = Desk(slurm, tmp_path.name)
    later = "run.env.extra_directives=[--begin=now+1hour]"
    job = desk.batch("super3", "sft", *short("sft"), later, HF_TOKEN=TOKEN)
    slurm.checked("head", "scancel", job)
    slurm.wait_until(lambda: "cancelled" in desk.run("jobs").stdout)
    assert files_with_token(desk.folder) == []
    assert (desk.job(job) / "exit_code").read_text() == "130\n"
