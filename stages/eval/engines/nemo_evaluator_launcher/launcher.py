"""Evaluate one model with NVIDIA's tasks in containers, on a Slurm cluster or with Docker on this machine.

nemo-evaluator-launcher serves the model and runs the tasks; this process submits, waits and reads the results:

    launcher = Launcher(program, run, telemetry=False)
    invocation = launcher.submit(rendered_config(config, "/models/rl"))  # after a kill: finds the running jobs
    launcher.wait(invocation, seconds=60)
    folders = launcher.fetch(invocation, run.directory / "fetched")      # {"hellaswag": folder with results.yml}

There are scores but no samples, so models are not compared in pairs. The exit code of `run` is ignored, because it is
0 even if Docker is down; `status` decides, then the results.

The config has the format of version 0.2.6. NVIDIA's older configs have two keys that it refuses, `execution.env_vars`
(now `env_vars`, `deployment.env_vars` and `export.env_vars`) and `deployment.multiple_instances` (now
`execution.num_instances`).
"""

import json
import shlex
import shutil
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from nemotron_shared.engine.spec import Outcome, Task
from nemotron_shared.system import distributed
from nemotron_shared.system.atomic import read_json, write_text
from nemotron_shared.system.console import doing
from nemotron_shared.system.errors import UserError, did_you_mean
from nemotron_shared.system.redaction import with_references
from nemotron_shared.system.stop import Stopped
from nemotron_shared.tracking.run import Run
from stages.eval.evaluate import label_of, outcome, result_name, write_results
from stages.eval.evaluator_section import Deployment, Execution, LauncherTask, NemoEvaluatorLauncherEngine
from stages.eval.harness import Program, find_program, reported_results
from stages.eval.schema import EvalConfig
from stages.eval.scoring import Z95, wilson

Config = EvalConfig[NemoEvaluatorLauncherEngine]
# A task's main metric: the first of these that it has, else its first metric.
PREFERRED = ("acc_norm", "acc", "exact_match")
VLLM = {"tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size", "gpu_memory_utilization"}
TESTED_VERSIONS = {"nemo-evaluator-launcher": "0.2.6"}
UNDER_WAY = {"pending", "running"}
# An unreachable login node is reported as a failed job, so check more than once.
LOOKS_AT_A_FAILURE = 3
CONFIG_SUFFIX = "_config.yml"


def evaluate(task: Task[Config]) -> Outcome:
    """Submit, wait, and write the results."""
    results = distributed.on_rank_zero(lambda: _evaluate(task))
    return outcome(task.run.output, results)


def _evaluate(task: Task[Config]) -> dict[str, Any]:
    config, model = task.config, task.inputs["model"]
    engine = config.engine
    program = find_program("nemo-evaluator-launcher", engine.launcher, "engine.launcher")
    rendered = rendered_config(config, str(model.path) if model else None)
    launcher = Launcher(program, task.run, telemetry=engine.telemetry)
    doing("waiting for nemo-evaluator-launcher")
    names = [one.name for one in chosen(engine, config.evaluation.tasks)]
    launcher.require_tasks(names)
    if engine.execution.type == "slurm":
        launcher.require_login(str(engine.execution.username), str(engine.execution.hostname))
    with task.run.watched():  # a signal stops only the waiting: the submission is recorded before
        invocation = launcher.submit(rendered)
        launcher.wait(invocation, engine.poll_interval)
    folders = launcher.fetch(invocation, task.run.directory / "fetched", names)
    results = summarise(task, folders, invocation)
    files = {f"benchmarks/{name}.yml": (folder / "results.yml").read_text("utf-8") for name, folder in folders.items()}
    write_results(task.run, results, files)
    return results


def summarise(task: Task[Config], folders: dict[str, Path], invocation: str) -> dict[str, Any]:
    """results.json, in the same format as the other engines'."""
    model = task.inputs["model"]
    name = result_name(model, "rl") if model else task.config.engine.deployment.served_model_name
    scores = {benchmark: benchmark_score(benchmark, folder) for benchmark, folder in folders.items()}
    return {
        "schema_version": 1,
        "tasks": {
            benchmark: {
                "kind": "benchmark",
                "metric": score["metric"],
                "lower_is_better": False,
                "n": score["n"],
                "n_unique": score["n"],
            }
            for benchmark, score in scores.items()
        },
        "models": {name: {"reference": model and model.reference, "label": label_of(name, model)}},
        "scores": [{"model": name, "task": benchmark, **score} for benchmark, score in scores.items()],
        "comparisons": [],
        "overlap": {},
        "settings": {
            "engine": task.config.engine.name,
            "limit": task.config.evaluation.limit,
            "invocation": invocation,
            "params": task.config.engine.params.model_dump(),
        },
    }


def benchmark_score(name: str, folder: Path) -> dict[str, Any]:
    """Score of one benchmark from its results.yml, with `n` from lm-eval's own results next to it.

    Raises:
        UserError: the score is missing, or both its standard error and its number of rows.
    """
    found = reported_results(folder / "results.yml", "groups") or reported_results(folder / "results.yml", "tasks")
    metrics = next(iter(found.values()), {})
    if not metrics:
        raise UserError(f"{folder / 'results.yml'}: no score of '{name}'")
    label = next((one for metric in PREFERRED for one in metrics if one.split("__")[0] == metric), next(iter(metrics)))
    value, error = metrics[label]["value"], metrics[label].get("stats", {}).get("stderr")
    # rows over all parts of a benchmark; 0 if the harness does not report them
    own = sorted(folder.rglob("results_*.json"))
    counts = read_json(own[-1]).get("n-samples", {}) if own else {}
    n = sum(int(count["effective"]) for count in counts.values())
    if error is None and not (n and 0 <= value <= 1):
        raise UserError(f"{folder / 'results.yml'}: '{name}' has neither a standard error nor a number of rows")
    low, high = (value - Z95 * error, value + Z95 * error) if error is not None else wilson(value * n, n)
    return {
        "metric": label.split("__")[0],
        "value": value,
        "stderr": error,
        "ci95": [low, high],
        "n": n,
        "all_metrics": {one: about["value"] for one, about in metrics.items()},
    }


def chosen(engine: NemoEvaluatorLauncherEngine, names: Sequence[str] | None) -> list[LauncherTask]:
    """The selected tasks, in the config's order; all if `names` is None.

    Raises:
        UserError: a name is not in the config.
    """
    known = [task.name for task in engine.tasks]
    for name in names or ():
        if name not in known:
            raise UserError(f"no task named '{name}'", did_you_mean(name, known, f"there are: {', '.join(known)}"))
    return [task for task in engine.tasks if names is None or task.name in names]


def rendered_config(config: Config, model: str | None) -> dict[str, Any]:
    """The launcher's whole config.

    Args:
        model: folder of run.model; None if it is not needed.

    Raises:
        UserError: no model to serve, or an unknown task.
    """
    engine, deployment = config.engine, config.engine.deployment
    params = engine.params.model_dump(exclude={"tokenizer", "tokenizer_backend"}, exclude_none=True)
    if config.evaluation.limit is not None:
        params["limit_samples"] = config.evaluation.limit
    tokenizer = engine.params.tokenizer or model
    backend = {"tokenizer_backend": engine.params.tokenizer_backend}
    params["extra"] = backend | ({"tokenizer": tokenizer} if tokenizer else {})
    tasks: list[dict[str, Any]] = []
    for task in chosen(engine, config.evaluation.tasks):
        tasks.append({"name": task.name})
        own: dict[str, Any] = {}
        if changed := task.params.model_dump(exclude_none=True):
            own["config"] = {"params": changed}
        if task.use_caching is not None:  # merged into the adapter's section below
            own["target"] = {"api_endpoint": {"adapter_config": {"use_caching": task.use_caching}}}
        if own:
            tasks[-1]["nemo_evaluator_config"] = own
        if task.container:
            tasks[-1]["container"] = task.container
    rendered: dict[str, Any] = {
        "defaults": [
            {"execution": "slurm/default" if engine.execution.type == "slurm" else "local"},
            {"deployment": deployment.type},
            "_self_",
        ],
        "env_vars": engine.env_vars,
        "execution": _execution(engine.execution, deployment.endpoints.health),
        "deployment": {} if deployment.type == "none" else _deployment(deployment, engine.container, model),
        "evaluation": {
            "nemo_evaluator_config": {
                "config": {"params": params},
                "target": {"api_endpoint": {"adapter_config": engine.adapter.rendered}},
            },
            "tasks": tasks,
        },
    }
    if deployment.type == "none":
        asked = {"url": deployment.url, "model_id": deployment.served_model_name}
        rendered["target"] = {"api_endpoint": asked | {"api_key_name": deployment.api_key_name}}
    if engine.wandb.project:
        rendered["execution"]["auto_export"] = {"destinations": ["wandb"]}
        # the job that exports the scores needs the user's key
        rendered["export"] = {
            "wandb": engine.wandb.model_dump(),
            "env_vars": {"WANDB_API_KEY": "host:WANDB_API_KEY"},
        }
    return rendered


def _execution(section: Execution, health_path: str) -> dict[str, Any]:
    if section.type == "local":
        # The local executor has no mounts for the evaluation, only arguments for both containers.
        both, more = section.mounts.seen_by("evaluation"), section.mounts.seen_by("deployment")
        return {
            "output_dir": section.output_dir,
            "extra_docker_args": " ".join(
                f"--volume {shlex.quote(f'{host}:{inside}')}" for host, inside in both.items()
            ),
            "mounts": {"deployment": {host: inside for host, inside in more.items() if both.get(host) != inside}},
        }
    health = {"health_check_path": health_path, "health_check_status": 200}
    return {
        **section.model_dump(exclude={"type", "proxy_image", "proxy_port", "mounts"}),
        "mounts": {
            "deployment": section.mounts.seen_by("deployment"),
            "evaluation": section.mounts.seen_by("evaluation"),
            "mount_home": section.mounts.mount_home,
        },
        "deployment": {"n_tasks": section.num_nodes},
        "proxy": {
            "type": "haproxy",
            "image": section.proxy_image,
            "config": {"haproxy_port": section.proxy_port, **health},
        },
    }


def _deployment(section: Deployment, image: str | None, model: str | None) -> dict[str, Any]:
    """The server: vllm serves run.model's Hugging Face folder, generic the Megatron checkpoint in it."""
    if section.checkpoint_path is None and model is None:
        raise UserError("no model to serve", "set run.model, or engine.deployment.checkpoint_path")
    own = {"command"} if section.type == "generic" else VLLM
    common = {"served_model_name", "port", "endpoints", "extra_args", "env_vars"}
    return {
        "image": image,
        "checkpoint_path": section.checkpoint_path or (f"{model}/megatron" if section.type == "generic" else model),
        **section.model_dump(include=common | own),
    }


class Launcher:
    """The console program. Its records are in the user's home; our record of submissions is in the run folder."""

    def __init__(self, program: Program, run: Run, *, telemetry: bool) -> None:
        self._program, self._run = program, run
        self._environment = program.environment(telemetry)
        self._submitted = run.directory / "submitted"

    def _call(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        command = [str(self._program.path), *arguments]
        return subprocess.run(command, env=self._environment, capture_output=True, text=True, check=False)

    def _json(self, *arguments: str) -> Any:
        answer = self._call(*arguments, "--json")
        try:
            return json.loads(answer.stdout)
        except ValueError as error:
            raise UserError(f"nemo-evaluator-launcher {arguments[0]}: {last(answer)}") from error

    def require_tasks(self, names: list[str]) -> None:
        """Refuse a task that the launcher does not have.

        Raises:
            UserError: unknown task; the remedy suggests the nearest name.
        """
        known = {about["task"] for about in self._json("ls", "tasks")["tasks"]}
        for name in names:
            if name.rpartition(".")[2] not in known:
                near = did_you_mean(name, known, "see: nemo-evaluator-launcher ls tasks")
                raise UserError(f"engine.tasks: the launcher has no task '{name}'", near)

    def require_login(self, username: str, hostname: str) -> None:
        """Check that the login node can be reached without a password: the launcher cannot enter one.

        Raises:
            UserError: with ssh's message.
        """
        command = ["ssh", "-oBatchMode=yes", "-oConnectTimeout=30", f"{username}@{hostname}", "true"]
        try:
            answer = subprocess.run(command, capture_output=True, text=True, check=False)
        except FileNotFoundError as error:
            raise UserError("ssh not found; the launcher needs it to submit", "install OpenSSH's client") from error
        if answer.returncode:
            raise UserError(
                f"ssh {username}@{hostname}: {last(answer, 1) or 'no message'}",
                "the launcher submits over ssh, even from the login node itself: add your public key to "
                f"~/.ssh/authorized_keys there, and log in once by hand: ssh {username}@{hostname}",
            )

    def submit(self, config: dict[str, Any]) -> str:
        """Submit the config, unless an earlier attempt of this run already did; returns the id of the invocation.

        Raises:
            UserError: the launcher refused the config, or did not submit it.
        """
        if (before := self._known_invocation()) is not None:
            self._run.say(f"jobs of {before} were already submitted: waiting for those")
            return before
        file = self._run.directory / "launcher.yaml"
        write_text(file, yaml.safe_dump(with_references(config), sort_keys=False, allow_unicode=True))
        dry = self._call("run", "--config", str(file), "--dry-run")
        if dry.returncode:
            raise UserError(f"nemo-evaluator-launcher refuses the config {file}\n{last(dry)}")
        answer = self._call("run", "--config", str(file), "--config-output", str(self._submitted))
        invocation = self._known_invocation()
        if invocation is None:
            raise UserError(f"nothing was submitted\n{last(answer)}", f"the config is {file}")
        self._run.say(f"submitted {invocation}: nemo-evaluator-launcher status {invocation}")
        return invocation

    def _known_invocation(self) -> str | None:
        files = sorted(self._submitted.glob(f"*{CONFIG_SUFFIX}"))
        return files[-1].name.removesuffix(CONFIG_SUFFIX) if files else None

    def status(self, invocation: str) -> dict[str, str]:
        """State of each job, such as `{"1a2b.0": "running"}`."""
        return {str(job["job_id"]): str(job["status"]).lower() for job in self._json("status", invocation)}

    def wait(self, invocation: str, seconds: int) -> None:
        """Wait until every job has succeeded.

        Raises:
            Stopped: a signal came; the jobs keep running.
            UserError: a job failed. The next attempt of this run submits again.
        """
        looks, before = 0, ""
        while True:
            jobs = self.status(invocation)
            if (now := ", ".join(f"{job}: {state}" for job, state in jobs.items())) != before:
                self._run.say(now)
            before, states = now, set(jobs.values())
            if states <= {"success"}:
                return
            looks = 0 if states & UNDER_WAY else looks + 1
            if looks == LOOKS_AT_A_FAILURE:
                shutil.rmtree(self._submitted)
                raise UserError(f"some jobs failed: {now}", f"see: nemo-evaluator-launcher logs {invocation}")
            until = time.monotonic() + seconds
            while time.monotonic() < until:
                if self._run.stop_requested:
                    raise Stopped(
                        f"[{self._run.name}] stopped waiting; the jobs keep running",
                        f"run the same command again to keep waiting, or: nemo-evaluator-launcher kill {invocation}",
                    )
                time.sleep(min(1.0, seconds))

    def fetch(self, invocation: str, folder: Path, names: list[str]) -> dict[str, Path]:
        """Copy the jobs' output to this machine; returns the folder of each task's results.yml.

        Raises:
            UserError: a job that succeeded left no results.
        """
        shutil.rmtree(folder, ignore_errors=True)
        answer = self._call("info", invocation, "--copy-artifacts", str(folder))
        found = {}
        for number, name in enumerate(names):
            files = sorted(folder.rglob(f"{invocation}.{number}/**/results.yml"))
            if not files:
                raise UserError(f"{name}: the job left no results.yml\n{last(answer)}")
            found[name] = files[0].parent
        return found


def last(answer: "subprocess.CompletedProcess[str]", most: int = 12) -> str:
    """The last lines of a program's output."""
    return "\n".join((answer.stdout + answer.stderr).strip().splitlines()[-most:])
