"""What NeMo-Run is asked, in the environment that holds it: a description on standard input, an answer on the output.

    {"action": "submit", "executor": "docker", "settings": {...}, "folder": "...", "name": "...", "command": [...]}

NeMo-Run's executors are used as such, without its experiments: those write all that an executor knows, a client's
secret among it, into files that everybody can read. This file imports nothing of ours.
"""

import importlib
import json
import logging
import os
import shutil
import signal
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

Told = dict[str, Any]
CLASSES = {
    "docker": "DockerExecutor",
    "dgxcloud": "DGXCloudExecutor",
    "lepton": "LeptonExecutor",
    "kubeflow": "KubeflowExecutor",
}
SENT = "send"
"""In a job's folder: what is copied to a cloud."""
LOG_SECONDS = 60
"""Lepton's log does not end as long as the job runs."""
ALL_RANKS = "log-allranks_0.out"


def executor_of(told: Told) -> tuple[Any, Any]:
    """NeMo-Run's module, and an executor of it that knows the job's folder."""
    os.environ["NEMORUN_HOME"] = str(Path(told["folder"]).parent)  # the folder on a volume is named after the rest
    module = importlib.import_module(f"nemo_run.core.execution.{told['executor']}")
    kind: Any = getattr(module, CLASSES[told["executor"]])
    settings = dict(told["settings"])
    if told["executor"] == "dgxcloud":
        settings["client_secret"] = os.environ.get(told["client_secret_env"], "")
    if told["executor"] == "kubeflow" and told["action"] == "render":
        kind._load_kube_clients = lambda self: None
    executor = kind(**settings)
    folder = Path(told["folder"])
    executor.assign(folder.name, str(folder), told["name"], SENT)
    return module, executor


def command_of(told: Told, executor: Any) -> list[str]:
    """What starts the job there."""
    if told["executor"] == "kubeflow":
        return ["bash", f"{executor.code_dir}/job.sh"]
    # DGX Cloud's script pipes the command into tee, whose exit code would be the job's.
    return [*(["set -o pipefail;"] if told["executor"] == "dgxcloud" else []), "bash", "/nemo_run/job.sh"]


class Recorder:
    """Stands where a service would answer, and keeps what it was sent."""

    def __init__(self) -> None:
        self.sent: dict[str, Any] = {}
        self.networks = SimpleNamespace(create=lambda **network: self.sent.update(network=network))
        self.containers = SimpleNamespace(
            run=lambda image, command, **options: self.sent.update(
                container={"image": image, "command": command} | options
            )
        )
        self.nodegroup = SimpleNamespace(list_all=lambda: [self.group], list_nodes=lambda group: [])
        self.group: Any = None
        self.job = SimpleNamespace(
            create=lambda job: self.sent.update(job=json.loads(job.json(exclude_none=True, by_alias=True)))
        )

    def post(self, url: str, json: Any, headers: Any) -> Any:
        """For requests.post."""
        self.sent |= {"post": url, "body": json}
        return SimpleNamespace(status_code=202, text="")


def render(told: Told) -> str:
    """What NeMo-Run would send, caught before it leaves this machine."""
    module, executor = executor_of(told)
    recorder, name = Recorder(), told["name"]
    if told["executor"] == "docker":
        container_of(module, executor, told).run(recorder, told["name"])
    elif told["executor"] == "dgxcloud":
        module.requests = recorder
        executor.create_training_job("TOKEN", "PROJECT-ID", "CLUSTER-ID", name)
    elif told["executor"] == "lepton":
        recorder.group = SimpleNamespace(metadata=SimpleNamespace(id_="NODE-GROUP-ID", name=executor.node_group))
        module.APIClient = lambda: recorder
        executor.create_lepton_job(name)
    else:
        executor.copy_to_workspace = lambda *paths, **options: None
        executor.package(executor.packager, name)
        recorder.sent = executor.get_job_body(name, command_of(told, executor))
    return json.dumps(recorder.sent, indent=2, default=lambda value: getattr(value, "__dict__", str(value)))


def container_of(module: Any, executor: Any, told: Told) -> Any:
    """NeMo-Run's container, whose output it keeps in the job's folder."""
    return module.DockerContainer(
        name=told["name"], command=command_of(told, executor), executor=executor, extra_env={}
    )


def submit(told: Told) -> str:
    """Start it; the id by which it is found again."""
    if told["executor"] == "kubeflow" and shutil.which("kubectl") is None:
        raise RuntimeError("it copies the job's folder with kubectl, and there is none on this machine")
    module, executor = executor_of(told)
    if told["executor"] == "docker":
        container_of(module, executor, told).run(module.get_client(), told["name"])
        return told["name"]
    if told["executor"] == "kubeflow":  # the others copy the folder when they launch
        executor.package(executor.packager, told["name"])
    identity, _ = executor.launch(told["name"], command_of(told, executor))
    return identity


def docker_container(told: Told) -> Any:
    """The container of a job, or None where it is gone. Without NeMo-Run, whose import takes seconds."""
    docker: Any = importlib.import_module("docker")
    try:
        return docker.from_env().containers.get(told["id"])
    except docker.errors.NotFound:
        return None


def state(told: Told) -> str:
    """The service's own word for it; empty where it knows nothing."""
    if told["executor"] == "docker":
        container = docker_container(told)
        return container.status if container else ""
    _, executor = executor_of(told)
    found = executor.status(told["id"])
    return found.value if found else ""


def log(told: Told) -> str:
    """What a job on Lepton or Kubernetes has said up to now."""
    _, executor = executor_of(told)
    if told["executor"] == "kubeflow":
        everything = Path(executor.job_dir) / ALL_RANKS  # its answer leaves out what is not of torchrun's first process
        everything.unlink(missing_ok=True)
        for _ in executor.fetch_logs(told["id"], stream=False):
            pass
        return everything.read_text(encoding="utf-8", errors="replace")
    if state(told) != "Running":  # it would wait until it runs
        return ""
    said: list[str] = []
    sys.stdout = SimpleNamespace(write=said.append, flush=lambda: None)

    def enough(number: int, frame: Any) -> None:
        raise TimeoutError

    signal.signal(signal.SIGALRM, enough)
    signal.alarm(LOG_SECONDS)
    try:
        executor.logs(told["id"], None)
    except TimeoutError:
        pass
    finally:
        signal.alarm(0)
        sys.stdout = sys.stderr
    return "".join(said)


def cancel(told: Told) -> str:
    """End it. A container's script is told, and has the step save; a cloud ends the job in its own way."""
    if told["executor"] == "docker":
        if container := docker_container(told):
            try:
                asked = container.exec_run(["bash", "-c", "kill -TERM $(cat /nemo_run/pid)"])
            except Exception:
                found = docker_container(told)
                if found and found.status == "running":
                    raise
                return ""  # it ended meanwhile
            if asked.exit_code:
                container.stop()
        return ""
    _, executor = executor_of(told)
    executor.cancel(told["id"])
    return ""


class Complaints(logging.Handler):
    """What NeMo-Run writes into its log as an error and does not raise."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep it."""
        self.lines.append(record.getMessage())


@contextmanager
def answers_apart() -> Generator[Any]:
    """The real standard output for the answer; what libraries print goes to the standard error."""
    with os.fdopen(os.dup(1), "w") as answers:
        os.dup2(2, 1)
        sys.stdout = sys.stderr
        yield answers


def main() -> None:
    """Do what was asked for."""
    told: Told = json.load(sys.stdin)
    complaints = Complaints()
    actions = {"render": render, "submit": submit, "state": state, "log": log, "cancel": cancel}
    with answers_apart() as answers:
        logging.getLogger("nemo_run").addHandler(complaints)
        try:
            answer = {"answer": actions[told["action"]](told)}
            if told["action"] == "cancel" and complaints.lines:
                answer = {"error": complaints.lines[-1]}
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {'; '.join([str(error), *complaints.lines])}"}
        json.dump(answer, answers)


if __name__ == "__main__":
    main()
