"""Run commands and copy files on the machine that takes jobs: this one, or a login node over ssh and rsync.

with transport_of(profile) as there:
    there.run(["squeue", "--me"])
    there.send(folder)
"""

import shlex
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Protocol

from nemotron_cluster.profiles import Profile, Slurm
from nemotron_shared.system.errors import UserError

PATIENCE = 120.0
"""Timeout in seconds for a scheduler or a login node: a busy one may take a minute."""
UNREACHABLE = 255
"""Exit code of ssh itself, which means that the command did not run."""
Answer = subprocess.CompletedProcess[str]


class NoAnswer(UserError):
    """A program did not answer in time, so the outcome is unknown."""


class Transport(Protocol):
    """The machine where jobs are submitted."""

    @property
    def place(self) -> str:
        """For people: "here", or the login node's name."""
        ...

    def run(self, command: Sequence[str], patience: float = PATIENCE) -> Answer:
        """Run a command there and capture its output. Non-zero exit codes do not raise.

        Raises:
            NoAnswer: it took longer than `patience` seconds.
            UserError: the program does not exist, or the machine cannot be reached.
        """
        ...

    def send(self, folder: Path, to: PurePosixPath) -> None:
        """Copy the content of a local folder there, preserving private permissions."""
        ...

    def read(self, path: PurePosixPath, start: int = 0) -> bytes | None:
        """A file's content from a byte offset on; None if it does not exist."""
        ...


@dataclass(frozen=True)
class Here:
    """This machine."""

    place: str = "here"

    def run(self, command: Sequence[str], patience: float = PATIENCE) -> Answer:
        return _run(command, patience)

    def send(self, folder: Path, to: PurePosixPath) -> None:
        """Do nothing if source and target are the same folder."""
        if Path(to) != folder:
            _must(_run(["mkdir", "-p", "-m", "700", "--", str(to)], None), f"{to} could not be made")
            _must(_run(["cp", "-a", "--", f"{folder}/.", str(to)], None), f"{folder} could not be copied to {to}")

    def read(self, path: PurePosixPath, start: int = 0) -> bytes | None:
        try:
            with Path(path).open("rb") as file:
                file.seek(start)
                return file.read()
        except FileNotFoundError:
            return None


@dataclass(frozen=True)
class Ssh:
    """A login node. ssh handles keys, jump hosts and aliases through ~/.ssh/config, without prompting."""

    host: str
    user: str | None = None
    port: int | None = None
    identity: str | None = None
    options: tuple[str, ...] = ()

    @property
    def place(self) -> str:
        return f"{self.user}@{self.host}" if self.user else self.host

    def run(self, command: Sequence[str], patience: float = PATIENCE) -> Answer:
        answer = _run([*self._ssh(), self.place, "--", shlex.join(command)], patience)
        if answer.returncode == UNREACHABLE:
            raise UserError(
                f"{self.place} cannot be reached: {last_line(answer.stderr)}",
                f"try: {shlex.join(['ssh', '--', self.place, 'true'])}",
            )
        return answer

    def send(self, folder: Path, to: PurePosixPath) -> None:
        _must(self.run(["mkdir", "-p", "-m", "700", "--", str(to)]), f"{self.place}:{to} could not be made")
        command = ["rsync", "-a", "--protect-args", "-e", shlex.join(self._ssh()), f"{folder}/", f"{self.place}:{to}/"]
        _must(_run(command, None), f"{folder} could not be copied to {self.place}:{to}")

    def read(self, path: PurePosixPath, start: int = 0) -> bytes | None:
        there = shlex.quote(str(path))
        script = f"[ -e {there} ] || exit 44; exec tail -c +{start + 1} -- {there}"
        command = [*self._ssh(), self.place, "--", shlex.join(["sh", "-c", script])]
        try:
            done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=PATIENCE, check=False)
        except subprocess.TimeoutExpired as error:
            raise NoAnswer(f"{self.place} did not answer within {PATIENCE:.0f} s") from error
        if done.returncode == UNREACHABLE:
            raise NoAnswer(f"{self.place} cannot be reached: {last_line(done.stderr.decode(errors='replace'))}")
        return None if done.returncode else done.stdout

    def _ssh(self) -> list[str]:
        words = ["ssh", "-o", "BatchMode=yes", *self.options]
        words += ["-p", str(self.port)] if self.port else []
        return words + (["-i", self.identity] if self.identity else [])


def transport_of(profile: Profile) -> Transport:
    """The transport to the machine where a profile's jobs are submitted.

    Raises:
        UserError: the profile's key file does not exist.
    """
    if isinstance(profile, Slurm) and profile.tunnel == "ssh" and profile.host:
        identity = str(Path(profile.identity).expanduser()) if profile.identity else None
        if identity and not Path(identity).is_file():
            raise UserError(f"identity: the key file {identity} does not exist", "correct it, or leave it to ssh")
        return Ssh(profile.host, profile.user, profile.port, identity, tuple(profile.ssh_options))
    return Here()


def _run(command: Sequence[str], patience: float | None) -> Answer:
    try:
        return subprocess.run(
            list(command),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=patience,
            check=False,
        )
    except FileNotFoundError as error:
        raise UserError(
            f"the program '{command[0]}' is not on this machine", "run it where it is, or install it"
        ) from error
    except subprocess.TimeoutExpired as error:
        raise NoAnswer(f"{command[0]} did not answer within {patience:.0f} s", "try again in a minute") from error


def _must(answer: Answer, what: str) -> None:
    if answer.returncode:
        raise UserError(f"{what}: {last_line(answer.stderr)}", "check the path and your permissions there")


def last_line(*texts: str) -> str:
    """The last line of the first text that is not empty: of a program's output, it usually says what is wrong."""
    return next((text.strip().splitlines()[-1] for text in texts if text.strip()), "no message")
