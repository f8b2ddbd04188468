"""Docker, DGX Cloud, Lepton and Kubeflow, through NeMo-Run in a separate environment.

NeMo-Run gets the path of a job's folder, and no secret except the credentials for DGX Cloud. Docker mounts the
folder; clouds get a copy without secrets, since clouds keep secrets themselves (`secret_refs`).
"""

import getpass
import json
import os
import re
import subprocess
import tarfile
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from nemotron_cluster.backends import Condition, State
from nemotron_cluster.backends.local import (
    ONE_MACHINE,
    PACKED,
    copy_own_files,
    exit_code_in,
    refuse_unsupported,
    start_script,
    state_of,
)  # fmt: skip
from nemotron_cluster.job import CODE, EXIT_CODE, SCRIPT, Job, Record, add_mounts, jobs_folder
from nemotron_cluster.profiles import Cloud, DGXCloud, Docker, Kubeflow, Lepton, Profile
from nemotron_cluster.transport import NoAnswer, last_line
from nemotron_shared.machine.environments import environment_of
from nemotron_shared.system import atomic
from nemotron_shared.system.errors import UserError

PROGRAM = Path(__file__).parent / "nemo_run_program.py"
REQUEST_FILE = "nemo_run.json"
"""File in a job's folder with the request to NeMo-Run, for later queries about the job."""
SENT = "send"
LINK = PurePosixPath("/nemo_run")
PATIENCE = 300.0
LEPTON_CARRIES = 96 * 1024
"""Maximum size of an archive in bytes. NeMo-Run sends it, as text, in a single argument of a command."""

RANK_OPTIONS = ("--node-rank", "--master-addr", "--master-port")
RANK_VARIABLES = {
    "lepton": ("NODE_RANK", "MASTER_ADDR", "MASTER_PORT"),
    "kubeflow": ("PET_NODE_RANK", "PET_MASTER_ADDR", "PET_MASTER_PORT"),
}
"""What each service calls these options of torchrun. Run:ai, behind DGX Cloud, passes them to torchrun itself."""
SAME_NAMES = {
    "docker": ("ipc_mode", "shm_size"),
    "dgxcloud": ("base_url", "kube_apiserver_url", "client_id", "project_name", "pvc_nemo_run_dir", "pvcs",
                 "distributed_framework", "custom_spec"),
    "lepton": ("nemo_run_dir", "resource_shape", "node_group", "shared_memory_size", "mounts", "image_pull_secrets",
               "pre_launch_commands"),
    "kubeflow": ("namespace", "workdir_pvc", "workdir_pvc_path", "image_pull_secrets", "labels", "annotations",
                 "tolerations", "volumes", "volume_mounts", "cpu_requests", "memory_requests"),
}  # fmt: skip
"""Profile keys that are called the same in NeMo-Run's executors."""
STATES: dict[str, Condition] = {
    # Docker
    "created": "waiting", "running": "running", "paused": "running", "restarting": "running", "removing": "running",
    # DGX Cloud, Lepton, Kubeflow
    "Creating": "waiting", "Initializing": "waiting", "Resuming": "waiting", "Pending": "waiting",
    "Starting": "waiting", "Queueing": "waiting", "Awaiting": "waiting", "PendingRetry": "waiting",
    "Restarting": "waiting", "Created": "waiting",
    "Running": "running", "Updating": "running", "Degraded": "running", "Stopping": "running",
    "Terminating": "running", "Deleting": "running",
    "Completed": "done", "Succeeded": "done", "Failed": "failed", "Stopped": "cancelled", "Deleted": "cancelled",
}  # fmt: skip


@dataclass(frozen=True)
class NemoRunBackend:
    """Jobs of NeMo-Run executors."""

    profile: Profile

    def there(self, folder: Path) -> PurePosixPath:
        if isinstance(self.profile, Kubeflow):
            return PurePosixPath(self.profile.workdir_pvc_path) / getpass.getuser() / folder.name / _name(folder) / CODE
        return LINK

    def render(self, job: Job, folder: Path) -> str:
        self._refuse(job)
        script = start_script(job, self.profile, self._nodes(job))
        if _python() is None:
            request = f"# the request itself is shown where NeMo-Run is: {_install()}"
        else:
            request = self._call("render", self._request(job, folder))
        return f"{script}\n# NeMo-Run ({self.profile.executor}) would send:\n{request}\n"

    def test_submit(self, job: Job, folder: Path) -> str | None:
        """See the protocol: these services have no test submission."""
        return None

    def lay_out(self, job: Job, folder: Path) -> None:
        """See the protocol.

        Raises:
            UserError: a cloud, where a folder is sent only when a job is submitted.
        """
        if isinstance(self.profile, Cloud):
            raise UserError(f"executor '{self.profile.executor}' takes a folder only with its job", "use --batch")
        self._refuse(job)
        atomic.write_text(folder / SCRIPT, start_script(job, self.profile))

    def submit(self, job: Job, folder: Path) -> str:
        self._refuse(job)
        request = self._request(job, folder)
        if isinstance(self.profile, Cloud):
            self._pack(job, folder)
        else:
            self.lay_out(job, folder)
        atomic.write_json(folder / REQUEST_FILE, request)
        return self._call("submit", request, None)

    def state(self, record: Record) -> State:
        executor = self.profile.executor
        if executor == "docker" and (ended := _ended(Path(record.folder))):
            return ended
        said = self._query("state", record)
        if executor == "docker" and said in ("", "exited", "stopped", "removing", "dead"):
            # Check again, since it may have ended in the meantime.
            return _ended(Path(record.folder)) or State(
                "failed", "its container is gone, and left no exit code", None, executor
            )
        sentence = f"{executor} calls it {said}" if said else f"{executor} knows no such job, or does not answer"
        return State(STATES.get(said, "unknown"), sentence, None, executor)

    def log(self, record: Record, start: int = 0) -> bytes | None:
        if isinstance(self.profile, DGXCloud):
            return b"NeMo-Run reads no log of DGX Cloud from outside: see the pages of Run:ai\n"[start:]
        if isinstance(self.profile, Docker):
            try:
                return (Path(record.folder) / f"log_{record.id}.out").read_bytes()[start:]
            except FileNotFoundError:
                return None
        return self._query("log", record).encode()[start:] or None

    def cancel(self, record: Record) -> None:
        self._query("cancel", record)

    def _refuse(self, job: Job) -> None:
        """Refuse what this executor cannot do, and what its profile lacks for it."""
        profile, executor = self.profile, self.profile.executor
        refuse_unsupported(job, executor, one_node=isinstance(profile, Docker))
        if job.container is None:
            raise UserError(f"executor '{executor}' needs an image", 'write: container_image = "IMAGE"')
        if isinstance(profile, Docker) and not os.environ.get("DOCKER_HOST", "unix:").startswith("unix:"):
            what = "DOCKER_HOST names another machine, which cannot mount the job's folder"
            raise UserError(what, "start the command there, or unset DOCKER_HOST")
        if not isinstance(profile, Cloud):
            return
        if profile.home is None:
            what = "home: the artifacts of this machine are not in the cloud"
            raise UserError(what, 'write where they are on its volume: home = "/mnt/nemotron"')
        if isinstance(profile, Kubeflow) and profile.workdir_pvc is None:
            raise UserError("workdir_pvc: the job's folder needs a volume", 'write: workdir_pvc = "CLAIM"')
        if isinstance(profile, Lepton) and profile.custom_spec:
            raise UserError("custom_spec: NeMo-Run 0.11.1 leaves it out for Lepton", "take it out of the profile")
        self._refuse_secrets(job, profile)

    def _refuse_secrets(self, job: Job, profile: Cloud) -> None:
        """Refuse to send values of secrets to a cloud: everyone with access to the request could read them."""
        if isinstance(profile, DGXCloud):
            missing, remedy = set(job.secrets), "NeMo-Run cannot name a secret of DGX Cloud"
        else:
            missing = set(job.secrets) - set(profile.secret_refs)
            form = "SECRET/KEY" if isinstance(profile, Kubeflow) else "SECRET"
            remedy = f'keep it there, and write: secret_refs = {{{next(iter(missing), "")} = "{form}"}}'
        if missing:
            names = ", ".join(sorted(missing))
            without = "; or go without: secrets = []"
            raise UserError(
                f"secrets: {names} is set here, and no value of a secret is sent to a cloud", remedy + without
            )
        for name, place in profile.secret_refs.items():
            if isinstance(profile, Kubeflow) and len(place.split("/")) != 2:
                raise UserError(f"secret_refs.{name}: '{place}' must name a secret and its key", 'write: "SECRET/KEY"')

    def _nodes(self, job: Job) -> tuple[str, ...]:
        if job.nodes == 1:
            return ONE_MACHINE
        variables = RANK_VARIABLES.get(self.profile.executor, ())
        ranks = (f'{option}="${name}"' for option, name in zip(RANK_OPTIONS, variables, strict=False))
        return (f"--nnodes={job.nodes}", *ranks)

    def _pack(self, job: Job, folder: Path) -> None:
        """Collect the files to copy to a cloud: script, settings, and the packages as one archive."""
        assert isinstance(self.profile, Cloud)
        place = folder / SENT
        place.mkdir()
        atomic.write_text(place / SCRIPT, start_script(job, self.profile, self._nodes(job)))
        copy_own_files(folder, place)
        if not self.profile.send_code:
            return
        with tarfile.open(place / PACKED, "w:xz") as archive:
            archive.add(folder / CODE, ".")
        size = (place / PACKED).stat().st_size
        if isinstance(self.profile, Lepton) and size > LEPTON_CARRIES:
            what = f"the packages are {size // 1024} KiB, and NeMo-Run carries {LEPTON_CARRIES // 1024} KiB to Lepton"
            raise UserError(what, "put the packages into the image, and write: send_code = false")

    def _request(self, job: Job, folder: Path) -> dict[str, Any]:
        profile = self.profile
        home = folder.parents[1] if folder.parent.name == "jobs" else jobs_folder().parent
        settings = settings_of(profile, job)
        if isinstance(profile, Docker):
            store = [] if profile.home else [f"{home}:{home}"]
            mounts = [*store, *profile.mounts]
            settings["volumes"] = [*mounts, *add_mounts(job.mounts, mounts), f"{folder}:{LINK}"]
        return {
            "executor": profile.executor,
            "settings": settings,
            "folder": str(folder),
            "name": _name(folder),
            "client_secret_env": profile.client_secret_env if isinstance(profile, DGXCloud) else None,
        }

    def _query(self, action: str, record: Record) -> str:
        request = atomic.read_json(Path(record.folder) / REQUEST_FILE)
        return self._call(action, request | {"id": record.id, "folder": record.folder})

    def _call(self, action: str, request: dict[str, Any], patience: float | None = PATIENCE) -> str:
        """Send a request to NeMo-Run and return the answer.

        Raises:
            NoAnswer: it took longer than `patience` seconds.
            UserError: NeMo-Run is not installed, or failed.
        """
        python = _python()
        if python is None:
            raise UserError(f"executor '{self.profile.executor}' needs NeMo-Run", f"get it by: {_install()}")
        variable = request["client_secret_env"]
        if action != "render" and variable and not os.environ.get(variable):
            raise UserError(f"{variable} is not set, which opens DGX Cloud", "set it in your shell")
        hidden = set(self.profile.secrets) - {variable}
        try:
            done = subprocess.run(
                [str(python), "-I", str(PROGRAM)],
                input=json.dumps(request | {"action": action}),
                capture_output=True,
                text=True,
                timeout=patience,
                check=False,
                env={name: value for name, value in os.environ.items() if name not in hidden},
            )
        except subprocess.TimeoutExpired as error:
            raise NoAnswer(f"NeMo-Run did not answer within {patience:.0f} s", "try again in a minute") from error
        try:
            answer = json.loads(done.stdout)
        except ValueError as error:
            what = f"NeMo-Run ended with exit code {done.returncode}: {last_line(done.stderr)}"
            raise UserError(what, _install()) from error
        if "error" in answer:
            raise UserError(
                f"NeMo-Run ({self.profile.executor}): {answer['error']}", "correct it in the profile, or there"
            )
        return answer["answer"]


def _ended(folder: Path) -> State | None:
    code = exit_code_in(folder)
    return None if code is None else state_of(code, EXIT_CODE)


def _name(folder: Path) -> str:
    """A unique job name that every service accepts: at most 31 letters, digits and dashes."""
    words = re.sub(r"[^a-z0-9]+", "-", re.sub(r"^\d{8}-\d{6}-", "", folder.name).lower()).strip("-")
    head, _, token = words.rpartition("-")
    return f"{head[:25].strip('-') or 'job'}-{token[:5]}"


def _python() -> Path | None:
    environment = environment_of("nemo_run")
    return environment.programs / "python" if environment and environment.programs else None


def _install() -> str:
    environment = environment_of("nemo_run")
    return environment.install if environment else ""


def settings_of(profile: Profile, job: Job) -> dict[str, Any]:
    """Arguments of NeMo-Run's executor, without secrets or variables, which the job's script sets."""
    settings = {key: getattr(profile, key) for key in SAME_NAMES[profile.executor]}
    if isinstance(profile, Docker):
        return settings | {
            "container_image": job.container,
            "ntasks_per_node": job.processes_per_node,
            "num_gpus": job.gpus_per_node or None,
            "runtime": profile.runtime or ("nvidia" if job.gpus_per_node else None),
        }
    if isinstance(profile, Kubeflow):
        references = {name: place.split("/") for name, place in profile.secret_refs.items()}
        return settings | {
            "num_nodes": job.nodes,
            "gpus_per_node": job.gpus_per_node or None,
            "nprocs_per_node": job.processes_per_node,
            "image": job.container,
            "train_job_basename": job.name,
            "env_list": [
                {"name": name, "valueFrom": {"secretKeyRef": {"name": secret, "key": key}}}
                for name, (secret, key) in references.items()
            ],
        }
    settings |= {"nodes": job.nodes, "gpus_per_node": job.gpus_per_node, "nprocs_per_node": job.processes_per_node}
    settings |= {"container_image": job.container}
    if isinstance(profile, Lepton):
        settings |= {"node_reservation": profile.node_reservation or "", "secret_vars": profile.secret_refs}
    return settings
