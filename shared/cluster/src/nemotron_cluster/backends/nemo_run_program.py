"""Call NeMo-Run in the environment where it is installed: JSON request on stdin, answer on stdout.

    {"action": "submit", "executor": "docker", "settings": {...}, "folder": "...", "name": "...", "command": [...]}

Uses NeMo-Run's executors directly, without its experiments, which write everything an executor knows, including
client secrets, into world-readable files. This file must not import anything from this project.
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
"""Subfolder of a job's folder that is copied to a cloud."""
LOG_SECONDS = 60
"""Time limit for reading Lepton's log, which does not end while the job runs."""
ALL_RANKS = "log-allranks_0.out"


def executor_of(told: Told) -> tuple[Any, Any]:
    """NeMo-Run's module, and one of its executors, set up for the job's folder."""
    os.environ["NEMORUN_HOME"] = str(Path(told["folder"]).parent)  # the rest of the path names the folder on a volume
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
    """The command that starts the job there."""
    if told["executor"] == "kubeflow":
        return ["bash", f"{executor.code_dir}/job.sh"]
    # DGX Cloud's script pipes the command into tee, whose exit code would replace the job's.
    return [*(["set -o pipefail;"] if told["executor"] == "dgxcloud" else []), "bash", "/nemo_run/job.sh"]


class Recorder:
    """Stands in for a service, and records the request."""

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
        """Replacement for requests.post."""
        self.sent |= {"post": url, "body": json}
        return SimpleNamespace(status_code=202, text="")


def render(told: Told) -> str:
    """Record what NeMo-Run would send, without sending it."""
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
    """NeMo-Run's container, which writes its output into the job's folder."""
    return module.DockerContainer(
        name=told["name"], command=command_of(told, executor), executor=executor, extra_env={}
    )


def submit(told: Told) -> str:
    """Start the job; returns its id."""
    if told["executor"] == "kubeflow" and shutil.which("kubectl") is None:
        raise RuntimeError("it copies the job's folder with kubectl, and there is none on this machine")
    module, executor = executor_of(told)
    if told["executor"] == "docker":
        container_of(module, executor, told).run(module.get_client(), told["name"])
        return told["name"]
    if told["executor"] == "kubeflow":  # the others copy the folder on launch
        executor.package(executor.packager, told["name"])
    identity, _ = executor.launch(told["name"], command_of(told, executor))
    return identity


def docker_container(told: Told) -> Any:
    """The container of a job, or None if it is gone. Does not import NeMo-Run, which takes seconds."""
    docker: Any = importlib.import_module("docker")
    try:
        return docker.from_env().containers.get(told["id"])
    except docker.errors.NotFound:
        return None


def state(told: Told) -> str:
    """The service's own name for the state; empty if it does not know the job."""
    if told["executor"] == "docker":
        container = docker_container(told)
        return container.status if container else ""
    _, executor = executor_of(told)
    found = executor.status(told["id"])
    return found.value if found else ""


def log(told: Told) -> str:
    """Output of a job on Lepton or Kubernetes so far."""
    _, executor = executor_of(told)
    if told["executor"] == "kubeflow":
        everything = Path(executor.job_dir) / ALL_RANKS  # NeMo-Run's answer has only torchrun's first process
        everything.unlink(missing_ok=True)
        for _ in executor.fetch_logs(told["id"], stream=False):
            pass
        return everything.read_text(encoding="utf-8", errors="replace")
    if state(told) != "Running":  # it would wait for the job to start
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
    """End the job. A container's script gets a signal and lets the step save; clouds end jobs in their own way."""
    if told["executor"] == "docker":
        if container := docker_container(told):
            try:
                asked = container.exec_run(["bash", "-c", "kill -TERM $(cat /nemo_run/pid)"])
            except Exception:
                found = docker_container(told)
                if found and found.status == "running":
                    raise
                return ""  # it has ended in the meantime
            if asked.exit_code:
                container.stop()
        return ""
    _, executor = executor_of(told)
    executor.cancel(told["id"])
    return ""


class Complaints(logging.Handler):
    """Collects errors that NeMo-Run logs instead of raising."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Store the message."""
        self.lines.append(record.getMessage())


@contextmanager
def answers_apart() -> Generator[Any]:
    """Reserve the real stdout for the answer; output of libraries goes to stderr."""
    with os.fdopen(os.dup(1), "w") as answers:
        os.dup2(2, 1)
        sys.stdout = sys.stderr
        yield answers


def main() -> None:
    """Handle one request."""
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
