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

Request = dict[str, Any]
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


def executor_of(request: Request) -> tuple[Any, Any]:
    """NeMo-Run's module, and one of its executors, set up for the job's folder."""
    os.environ["NEMORUN_HOME"] = str(
        Path(request["folder"]).parent
    )  # the rest of the path names the folder on a volume
    module = importlib.import_module(f"nemo_run.core.execution.{request['executor']}")
    kind: Any = getattr(module, CLASSES[request["executor"]])
    settings = dict(request["settings"])
    if request["executor"] == "dgxcloud":
        settings["client_secret"] = os.environ.get(request["client_secret_env"], "")
    if request["executor"] == "kubeflow" and request["action"] == "render":
        kind._load_kube_clients = lambda self: None
    executor = kind(**settings)
    folder = Path(request["folder"])
    executor.assign(folder.name, str(folder), request["name"], SENT)
    return module, executor


def command_of(request: Request, executor: Any) -> list[str]:
    """The command that starts the job there."""
    if request["executor"] == "kubeflow":
        return ["bash", f"{executor.code_dir}/job.sh"]
    # DGX Cloud's script pipes the command into tee, whose exit code would replace the job's.
    return [*(["set -o pipefail;"] if request["executor"] == "dgxcloud" else []), "bash", "/nemo_run/job.sh"]


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


def render(request: Request) -> str:
    """Record what NeMo-Run would send, without sending it."""
    module, executor = executor_of(request)
    recorder, name = Recorder(), request["name"]
    if request["executor"] == "docker":
        container_of(module, executor, request).run(recorder, request["name"])
    elif request["executor"] == "dgxcloud":
        module.requests = recorder
        executor.create_training_job("TOKEN", "PROJECT-ID", "CLUSTER-ID", name)
    elif request["executor"] == "lepton":
        recorder.group = SimpleNamespace(metadata=SimpleNamespace(id_="NODE-GROUP-ID", name=executor.node_group))
        module.APIClient = lambda: recorder
        executor.create_lepton_job(name)
    else:
        executor.copy_to_workspace = lambda *paths, **options: None
        executor.package(executor.packager, name)
        recorder.sent = executor.get_job_body(name, command_of(request, executor))
    return json.dumps(recorder.sent, indent=2, default=lambda value: getattr(value, "__dict__", str(value)))


def container_of(module: Any, executor: Any, request: Request) -> Any:
    """NeMo-Run's container, which writes its output into the job's folder."""
    return module.DockerContainer(
        name=request["name"], command=command_of(request, executor), executor=executor, extra_env={}
    )


def submit(request: Request) -> str:
    """Start the job; returns its id."""
    if request["executor"] == "kubeflow" and shutil.which("kubectl") is None:
        raise RuntimeError("it copies the job's folder with kubectl, which this machine lacks")
    module, executor = executor_of(request)
    if request["executor"] == "docker":
        container_of(module, executor, request).run(module.get_client(), request["name"])
        return request["name"]
    if request["executor"] == "kubeflow":  # the others copy the folder on launch
        executor.package(executor.packager, request["name"])
    identity, _ = executor.launch(request["name"], command_of(request, executor))
    return identity


def docker_container(request: Request) -> Any:
    """The container of a job, or None if it is gone. Does not import NeMo-Run, which takes seconds."""
    docker: Any = importlib.import_module("docker")
    try:
        return docker.from_env().containers.get(request["id"])
    except docker.errors.NotFound:
        return None


def state(request: Request) -> str:
    """The service's own name for the state; empty if it does not know the job."""
    if request["executor"] == "docker":
        container = docker_container(request)
        return container.status if container else ""
    _, executor = executor_of(request)
    found = executor.status(request["id"])
    return found.value if found else ""


def log(request: Request) -> str:
    """Output of a job on Lepton or Kubernetes so far."""
    _, executor = executor_of(request)
    if request["executor"] == "kubeflow":
        everything = Path(executor.job_dir) / ALL_RANKS  # NeMo-Run's answer has only torchrun's first process
        everything.unlink(missing_ok=True)
        for _ in executor.fetch_logs(request["id"], stream=False):
            pass
        return everything.read_text(encoding="utf-8", errors="replace")
    if state(request) != "Running":  # it would wait for the job to start
        return ""
    said: list[str] = []
    sys.stdout = SimpleNamespace(write=said.append, flush=lambda: None)

    def enough(number: int, frame: Any) -> None:
        raise TimeoutError

    signal.signal(signal.SIGALRM, enough)
    signal.alarm(LOG_SECONDS)
    try:
        executor.logs(request["id"], None)
    except TimeoutError:
        pass
    finally:
        signal.alarm(0)
        sys.stdout = sys.stderr
    return "".join(said)


def cancel(request: Request) -> str:
    """End the job. A container's script gets a signal and lets the step save; clouds end jobs in their own way."""
    if request["executor"] == "docker":
        if container := docker_container(request):
            try:
                asked = container.exec_run(["bash", "-c", "kill -TERM $(cat /nemo_run/pid)"])
            except Exception:
                found = docker_container(request)
                if found and found.status == "running":
                    raise
                return ""  # it has ended in the meantime
            if asked.exit_code:
                container.stop()
        return ""
    _, executor = executor_of(request)
    executor.cancel(request["id"])
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
    request: Request = json.load(sys.stdin)
    complaints = Complaints()
    actions = {"render": render, "submit": submit, "state": state, "log": log, "cancel": cancel}
    with answers_apart() as answers:
        logging.getLogger("nemo_run").addHandler(complaints)
        try:
            answer = {"answer": actions[request["action"]](request)}
            if request["action"] == "cancel" and complaints.lines:
                answer = {"error": complaints.lines[-1]}
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {'; '.join([str(error), *complaints.lines])}"}
        json.dump(answer, answers)


if __name__ == "__main__":
    main()
