"""The Slurm backend: see `Backend`."""

from dataclasses import replace
from pathlib import Path, PurePosixPath

from nemotron_cluster import secrets
from nemotron_cluster.backends import Condition, State
from nemotron_cluster.job import EXIT_CODE, LOG, SCRIPT, Job, Record
from nemotron_cluster.profiles import Slurm
from nemotron_cluster.slurm import scheduler
from nemotron_cluster.slurm.script import render
from nemotron_cluster.transport import Here, NoAnswer, transport_of
from nemotron_shared.system import atomic
from nemotron_shared.system.errors import UserError
from nemotron_shared.system.stop import STOPPED_EXIT_CODE


class SlurmBackend:
    """Jobs of one profile, with Slurm on this machine or on the profile's login node."""

    def __init__(self, profile: Slurm) -> None:
        self.profile = profile
        self.transport = transport_of(profile)

    def there(self, folder: Path) -> PurePosixPath:
        place = self.profile.remote_job_dir
        return PurePosixPath(place) / folder.name if place else PurePosixPath(folder)

    def render(self, job: Job, folder: Path) -> str:
        return render(job, self.profile, self.there(folder))

    def test_submit(self, job: Job, folder: Path) -> str | None:
        """The answer of `sbatch --test-only`."""
        job = replace(job, after=())  # earlier jobs have not been submitted yet
        try:
            answer = scheduler.test_only(self.transport, self.render(job, folder))
        except scheduler.NoScheduler as error:
            return f"not asked: {error.message}"
        resources = scheduler.describe_partition(self.transport, self.profile.partition)
        return f"{answer}\npartition {self.profile.partition or '(default)'}: {resources}" if resources else answer

    def lay_out(self, job: Job, folder: Path) -> None:
        script = folder / SCRIPT
        atomic.write_text(script, self.render(job, folder))
        script.chmod(0o755)
        there = self.there(folder)
        if not isinstance(self.transport, Here) or Path(there) != folder:
            self.transport.send(folder, there)
            secrets.remove(folder)  # a copy is now on the cluster

    def submit(self, job: Job, folder: Path) -> str:
        self.lay_out(job, folder)
        there = self.there(folder)
        try:
            return scheduler.submit(self.transport, there / SCRIPT)
        except NoAnswer:
            raise  # it may be running
        except UserError:
            if Path(there) != folder:
                self.transport.run(["rm", "-rf", "--", str(there)])
            raise

    def state(self, record: Record) -> State:
        facts = self.facts(record)
        if facts is None:
            return State("unknown", "Slurm knows nothing of it any more, and it left no exit code", None, "scontrol")
        written = self._exit_code(record) if facts.over else None
        state = _state(facts, written)
        if facts.over and written is None:  # the script never started, or was killed before its end
            self._close(record, STOPPED_EXIT_CODE if state.exit_code is None else state.exit_code)
        return state

    def facts(self, record: Record) -> scheduler.Facts | None:
        """Slurm's own facts about the job."""
        return scheduler.find_job(self.transport.run, str(record.id), lambda: self._exit_code(record))

    def log(self, record: Record, start: int = 0) -> bytes | None:
        return self.transport.read(PurePosixPath(record.there) / LOG, start)

    def cancel(self, record: Record) -> None:
        """Have Slurm send SIGTERM, on which the script saves. For a waiting job, only remove its secrets."""
        there = str(PurePosixPath(record.there) / SCRIPT)
        queued = self.transport.run(["squeue", "--noheader", f"--jobs={record.id}", "--format=%T %o"])
        state, _, command = queued.stdout.strip().partition(" ")
        if command and command != there:
            what = f"job {record.id} runs {command}, and not {there}"
            raise UserError(what, "it is of another cluster or a later one of that id; nothing was cancelled")
        answer = self.transport.run(["scancel", str(record.id)])
        if answer.returncode:
            raise UserError(f"job {record.id} could not be cancelled: {answer.stderr.strip()}", "see: nemotron jobs")
        if state not in scheduler.CONDITIONS["running"]:  # it was waiting, or ended already: no script will clean up
            self._close(record, STOPPED_EXIT_CODE)

    def _close(self, record: Record, code: int) -> None:
        """Finish as the job's script would: record an exit code, because Slurm soon forgets it, and delete secrets."""
        close = 'rm -rf -- "$1"/secrets; [ -e "$1"/exit_code ] || printf "%s\\n" "$2" >"$1"/exit_code'
        self.transport.run(["sh", "-c", close, "sh", record.there, str(code)])

    def _exit_code(self, record: Record) -> str | None:
        content = self.transport.read(PurePosixPath(record.there) / EXIT_CODE)
        return None if content is None else content.decode(errors="replace")


def _state(facts: scheduler.Facts, written: str | None) -> State:
    """Args: written: the exit code that the job's script recorded, which is the step's own."""
    code = int(written) if written and written.strip().isdecimal() else facts.exit_code
    if not facts.over:
        if facts.condition == "waiting":
            sentence = f"waits: {scheduler.explain_reason(facts.reason, facts.restarts)}"
        else:
            sentence = f"runs on {facts.nodes}" if facts.condition == "running" else f"Slurm calls it {facts.state}"
        return State(facts.condition, sentence, None, facts.source)
    condition: Condition = facts.condition
    if condition in ("done", "failed") and written is not None and code is not None:
        condition = "done" if code == 0 else "cancelled" if code == STOPPED_EXIT_CODE else "failed"
    said = {"done": "finished", "cancelled": "cancelled", "failed": f"failed ({facts.state})"}[condition]
    shown = f", exit code {code}" if code and condition != "cancelled" else ""
    ended = {"cancelled": STOPPED_EXIT_CODE, "failed": code or 1, "done": 0}[condition]
    return State(condition, f"{said}{shown}", ended, facts.source)
