"""What `nemotron diagnose` was asked about: a folder of logs, a log, or a job that was submitted from here."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

from nemotron_cluster.diagnose.causes import Facts
from nemotron_cluster.diagnose.logs import TAIL, Logs, read_logs, text_of
from nemotron_cluster.folder import EXIT_CODE, LOG, RECORD, Record, jobs_folder, read_record, records
from nemotron_cluster.profiles.find import load_profile
from nemotron_cluster.transport import NoAnswer, Transport, transport_of
from nemotron_shared.errors import NotFound, UserError, did_you_mean

Ask = Callable[[Record, Transport], Facts | None]
"""Asks the scheduler about a job."""


@dataclass(frozen=True)
class Target:
    """What is to be diagnosed."""

    title: str
    logs: Logs
    facts: Facts | None


def find(wanted: str, home: str | None, ask: Ask) -> Target:
    """Look for a path first, then for a job by its id, its folder's name, or its name, of which the newest counts.

    Raises:
        NotFound: neither is there.
        UserError: it cannot be read.
    """
    path = Path(wanted).expanduser()
    if path.exists():
        record = read_record(path / RECORD) if path.is_dir() else None
        return _of_job(record, ask) if record else Target(wanted, read_logs(path), _facts_in(path))
    jobs = list(records(jobs_folder(home)))
    for names in (lambda job: job.id, lambda job: Path(job.folder).name, lambda job: job.name):
        for job in reversed(jobs):
            if names(job) == wanted:
                return _of_job(job, ask)
    known = [name for job in jobs for name in (job.id, job.name) if name]
    otherwise = "give a folder of logs, a log file, or a job's id or name"
    raise NotFound(f"{wanted}: no such file, folder or job", did_you_mean(wanted, known, otherwise))


def _of_job(job: Record, ask: Ask) -> Target:
    folder = Path(job.folder)
    title = f"{job.name} ({job.executor} job {job.id})" if job.id else f"{job.name} (not submitted)"
    logs, facts, silent = Logs(()), _facts_in(folder), []
    try:
        there = transport_of(load_profile(job.profile).profile)
        facts = ask(job, there) or facts
        if not (folder / LOG).exists():  # it lies on the cluster
            end = there.run(["tail", "-c", str(TAIL), "--", str(PurePosixPath(job.there) / LOG)])
            if end.returncode == 0:
                logs = Logs((text_of(LOG, end.stdout),))
    except (UserError, NoAnswer) as error:  # what lies here can be read all the same
        silent.append(error.message)
    if not logs.texts:
        logs = read_logs(folder)
    return Target(title, replace(logs, left_out=(*logs.left_out, *silent)), facts)


def _facts_in(folder: Path) -> Facts | None:
    """What the job's own script wrote at its end."""
    try:
        code = int((folder / EXIT_CODE).read_text(encoding="ascii")[:20])
    except (OSError, ValueError):
        return None
    return Facts("FAILED" if code else "COMPLETED", EXIT_CODE, None, code)
