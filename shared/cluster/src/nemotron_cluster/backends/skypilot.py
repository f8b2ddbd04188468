"""SkyPilot, through a task file and its `sky` command, which is not imported.

With `cluster_name` the job goes to that cluster (sky launch); otherwise SkyPilot provisions machines for it and
terminates them afterwards (sky jobs launch). SkyPilot reads secrets from the caller's environment by name; no file
contains a value.
"""

import os
import re
import shlex
import shutil
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import yaml

from nemotron_cluster.backends import State
from nemotron_cluster.backends.local import copy_own_files, refuse_unsupported, start_script
from nemotron_cluster.job import CODE, SCRIPT, Job, Record
from nemotron_cluster.profiles import SkyPilot
from nemotron_cluster.transport import Here, last_line
from nemotron_shared.system import atomic
from nemotron_shared.system.errors import UserError

TASK = "skypilot.yaml"
SENT = "send"
WORKDIR = "sky_workdir"
"""SkyPilot's name for the copy of a task's folder, in the remote home folder."""
LAUNCH_SECONDS = 3600.0
PORT = 29500
NODES = (
    '--node-rank="$SKYPILOT_NODE_RANK"',
    '--master-addr="$(head -n1 <<<"$SKYPILOT_NODE_IPS")"',
    f"--master-port={PORT}",
)


@dataclass(frozen=True)
class SkyPilotBackend:
    """Jobs of SkyPilot."""

    profile: SkyPilot

    def there(self, folder: Path) -> PurePosixPath:
        return PurePosixPath("~") / WORKDIR

    def render(self, job: Job, folder: Path) -> str:
        refuse_unsupported(job, "skypilot")
        if self.profile.home is None:
            what = "home: the artifacts of this machine are not in the cloud"
            raise UserError(what, 'write where they are there, in a mounted bucket: home = "/data/nemotron"')
        return f"# {shlex.join(self._launch(job, folder))}\n{self._task(job, folder)}\n# {SCRIPT}\n{self._script(job)}"

    def test_submit(self, job: Job, folder: Path) -> str | None:
        """See the protocol: SkyPilot answers only on launch."""
        return None

    def lay_out(self, job: Job, folder: Path) -> None:
        raise UserError("executor 'skypilot' takes a folder only with its job", "use --batch")

    def submit(self, job: Job, folder: Path) -> str:
        self.render(job, folder)
        place = folder / SENT
        place.mkdir()
        copy_own_files(folder, place)
        shutil.copytree(folder / CODE, place / CODE)
        atomic.write_text(place / SCRIPT, self._script(job))
        atomic.write_text(folder / TASK, self._task(job, folder))
        said = self._sky(self._launch(job, folder), LAUNCH_SECONDS)
        if self.profile.cluster_name is None:
            return folder.name
        found = re.search(r"Job ID: (\d+)", said)
        return f"{self.profile.cluster_name}:{found[1] if found else ''}"

    def state(self, record: Record) -> State:
        """See the protocol. Parses SkyPilot's table for people, whose format is not guaranteed."""
        ask = f"sky queue {self.profile.cluster_name}" if self.profile.cluster_name else "sky jobs queue"
        return State("unknown", f"SkyPilot knows: {ask}", None, "skypilot")

    def log(self, record: Record, start: int = 0) -> bytes | None:
        words = ["logs", *self._job(record)] if self.profile.cluster_name else ["jobs", "logs", *self._job(record)]
        return self._sky(["sky", *words, "--no-follow"]).encode()[start:] or None

    def cancel(self, record: Record) -> None:
        words = ["cancel"] if self.profile.cluster_name else ["jobs", "cancel"]
        self._sky(["sky", *words, "--yes", *self._job(record)])

    def _job(self, record: Record) -> list[str]:
        """Arguments that identify a job for `sky`: a cluster and a number, or a name."""
        if self.profile.cluster_name is None:
            return ["--name", str(record.id)]
        return [word for word in str(record.id).split(":") if word]

    def _launch(self, job: Job, folder: Path) -> list[str]:
        name = self.profile.cluster_name
        words = ["sky", "launch", "--cluster", name] if name else ["sky", "jobs", "launch", "--name", folder.name]
        secrets = [word for secret in job.secrets for word in ("--secret", secret)]
        return [*words, "--detach-run", "--yes", *secrets, str(folder / TASK)]

    def _task(self, job: Job, folder: Path) -> str:
        profile = self.profile
        resources = {
            "cloud": profile.cloud,
            "region": profile.region,
            "instance_type": profile.instance_type,
            "accelerators": profile.accelerators,
            "use_spot": profile.use_spot,
            "disk_size": profile.disk_size,
            "image_id": f"docker:{job.container}" if job.container else None,
        }
        task: dict[str, Any] = {
            "name": folder.name,
            "num_nodes": job.nodes,
            "resources": {key: value for key, value in resources.items() if value is not None},
            "workdir": str(folder / SENT),
            "file_mounts": profile.file_mounts,
            "secrets": dict.fromkeys(job.secrets),
            "run": f"bash ~/{WORKDIR}/{SCRIPT}",
        }
        return yaml.safe_dump({key: value for key, value in task.items() if value}, sort_keys=False)

    def _script(self, job: Job) -> str:
        nodes = (f"--nnodes={job.nodes}", *NODES) if job.nodes > 1 else ("--standalone",)
        return start_script(job, self.profile, nodes)

    def _sky(self, command: list[str], patience: float = 300.0) -> str:
        if shutil.which(command[0], path=os.environ.get("PATH")) is None:
            raise UserError("SkyPilot's command `sky` is not on this machine", "install SkyPilot, and run: sky check")
        answer = Here().run(command, patience)
        if answer.returncode:
            last = last_line(answer.stderr, answer.stdout)
            what = f"`{shlex.join(command[:3])}` ended with exit code {answer.returncode}: {last}"
            raise UserError(what, "sky status")
        return answer.stdout
