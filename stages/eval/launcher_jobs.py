"""Submit through nemo-evaluator-launcher, wait, and fetch the results.

    launcher = Launcher(program, run, telemetry=False)
    invocation = launcher.submit(config)          # again after a kill: the jobs that already run
    launcher.wait(invocation, seconds=60)
    folders = launcher.fetch(invocation, run.directory / "fetched")     # {"hellaswag": folder with results.yml}

The exit code of `run` is not believed: it is 0 where Docker is dead. What counts is `status`, then the results.
"""

import json
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

import yaml

from nemotron_shared.atomic import write_text
from nemotron_shared.errors import UserError, did_you_mean
from nemotron_shared.redaction import with_references
from nemotron_shared.runtime.run import Run
from nemotron_shared.runtime.stop import Stopped
from stages.eval.harness import Program

TESTED_VERSIONS = {"nemo-evaluator-launcher": "0.2.6"}
UNDER_WAY = {"pending", "running"}
# A login node that cannot be reached is reported as a failed job, so one look is not enough.
LOOKS_AT_A_FAILURE = 3
CONFIG_SUFFIX = "_config.yml"


class Launcher:
    """The console program; its own records lie in the user's home, ours of what was submitted in the run's folder."""

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
            UserError: with the nearest name.
        """
        known = {about["task"] for about in self._json("ls", "tasks")["tasks"]}
        for name in names:
            if name.rpartition(".")[2] not in known:
                near = did_you_mean(name, known, "see: nemo-evaluator-launcher ls tasks")
                raise UserError(f"engine.tasks: the launcher has no task '{name}'", near)

    def require_login(self, username: str, hostname: str) -> None:
        """Refuse a login node that cannot be reached: the launcher asks for no password, and waits for none.

        Raises:
            UserError: with what ssh says.
        """
        command = ["ssh", "-oBatchMode=yes", "-oConnectTimeout=30", f"{username}@{hostname}", "true"]
        try:
            answer = subprocess.run(command, capture_output=True, text=True, check=False)
        except FileNotFoundError as error:
            raise UserError(
                "there is no ssh here, by which the launcher submits", "install OpenSSH's client"
            ) from error
        if answer.returncode:
            raise UserError(
                f"ssh {username}@{hostname}: {last(answer, 1) or 'no message'}",
                "the launcher submits over ssh, to a login node from itself as well: add your public key to "
                f"~/.ssh/authorized_keys there, and log in once by hand: ssh {username}@{hostname}",
            )

    def submit(self, config: dict[str, Any]) -> str:
        """Identifier of the invocation; nothing is submitted when an earlier attempt of this run already did.

        Raises:
            UserError: the launcher refuses the config, or did not submit it.
        """
        if (before := self._known_invocation()) is not None:
            self._run.say(f"jobs of {before} were submitted before: looking at those")
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
        """Return when every job has succeeded.

        Raises:
            Stopped: a signal came; the jobs go on.
            UserError: a job ended without success. The next attempt of this run submits anew.
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
                raise UserError(f"not every job succeeded: {now}", f"see: nemo-evaluator-launcher logs {invocation}")
            until = time.monotonic() + seconds
            while time.monotonic() < until:
                if self._run.stop_requested:
                    raise Stopped(
                        f"[{self._run.name}] stopped looking; the jobs go on",
                        f"run the same command again to look on, or: nemo-evaluator-launcher kill {invocation}",
                    )
                time.sleep(min(1.0, seconds))

    def fetch(self, invocation: str, folder: Path, names: list[str]) -> dict[str, Path]:
        """Copy what the jobs left here; the folder of each task's results.yml.

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
    """The end of what a program said."""
    return "\n".join((answer.stdout + answer.stderr).strip().splitlines()[-most:])
