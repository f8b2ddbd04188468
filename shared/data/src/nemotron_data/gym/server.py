"""Start, watch and end the servers of environments.

    with serving(find_environment("drawers"), log=folder / "drawers.log") as server:
        Client(server.port, ...)

A server listens on 127.0.0.1 only, and ends when this process does, even by SIGKILL.
"""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Generator, Iterable
from contextlib import contextmanager, suppress
from pathlib import Path
from queue import Empty, Queue
from tempfile import TemporaryDirectory

from nemotron_data.gym.catalogue import NEMO_GYM, Environment
from nemotron_shared.machine.environments import environment_of, how_to_get
from nemotron_shared.system.errors import UserError
from nemotron_shared.system.process import ending_with_us

START_SECONDS = 120.0
END_SECONDS = 5.0
SHOWN_LINES = 3
VERSIONS = ("0.7.0", "0.4.0")
"""Versions of NeMo-Gym whose servers were played: the one that is installed, and the one that NeMo-RL 0.7.0 brings."""
PROGRAM = Path(__file__).with_name("nemo_gym_server.py")


class Server:
    """A server process; `port` waits until it is ready.

    Args:
        log: file for its output.
        port: 0 for a free one.
    """

    def __init__(self, environment: Environment, log: Path, port: int = 0) -> None:
        self.environment, self.log, self._asked = environment, log, port
        self._port: int | None = None
        self._tools = frozenset[str]()
        log.parent.mkdir(parents=True, exist_ok=True)
        variables = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
        with log.open("wb") as file:
            self._process = subprocess.Popen(
                ending_with_us(_command(environment, port)),
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=file, env=variables,
                start_new_session=True,  # Ctrl-C goes to our process, which ends the server when it is no longer needed
            )  # fmt: skip

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    @property
    def port(self) -> int:
        """The port it listens on.

        Raises:
            UserError: it ended before it was ready, or took too long.
        """
        if self._port is None:
            lines: Queue[bytes] = Queue()
            output = self._process.stdout
            assert output is not None
            threading.Thread(target=lambda: lines.put(output.readline()), daemon=True).start()
            with suppress(Empty):
                said = lines.get(timeout=START_SECONDS).split()
                if said[:1] == [b"ready"]:
                    self._port = int(said[1])
                    self._tools = frozenset(map(bytes.decode, said[2:]))
            if self._port is None:
                with suppress(subprocess.TimeoutExpired):
                    self._process.wait(END_SECONDS)
                state = self.state() or f"it is not ready after {START_SECONDS:g} s"
                self.end()
                raise UserError(f"environment '{self.environment.name}' does not start: {state}", self._remedy())
        return self._port

    @property
    def tools(self) -> frozenset[str] | None:
        """Names of its tools, once it is ready; None for a server of NeMo-Gym, which does not say them.

        Raises:
            UserError: as for `port`.
        """
        return self._tools if not self.environment.by_nemo_gym and self.port else None

    def _remedy(self) -> str:
        if "already in use" in self._last_lines():
            return "give another --port, or none: then a free one is taken"
        needed = self.environment.folder / "requirements.txt"
        if "ModuleNotFoundError" in self._last_lines() and self.environment.by_nemo_gym and needed.is_file():
            python = _command(self.environment, 0)[0]
            return f"install what it needs: uv pip install --python {python} and the packages of {needed}"
        return f"see {self.log}"

    def state(self, wait: float = 0) -> str:
        """How it ended, with its last lines of output; empty while it runs.

        Args:
            wait: seconds to wait for its end, because connections are lost a moment earlier.
        """
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(wait)
        code = self._process.poll()
        if code is None:
            return ""
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        last = self._last_lines()
        return f"its server ended ({how})" + (f": {last}" if last else "")

    def _last_lines(self) -> str:
        with suppress(OSError):
            lines = self.log.read_text(encoding="utf-8", errors="replace").splitlines()
            return " | ".join(line.strip() for line in lines[-SHOWN_LINES:] if line.strip())
        return ""

    def end(self) -> None:
        """End it, and wait for that."""
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(END_SECONDS)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()


@contextmanager
def serving(environment: Environment, log: Path, port: int = 0) -> Generator[Server]:
    """A server that is ready and runs until the block ends."""
    server = Server(environment, log, port)
    try:
        _ = server.port
        yield server
    finally:
        server.end()


def tools_of(environments: Iterable[Environment]) -> dict[str, frozenset[str] | None]:
    """The tools of each environment by its name; None for one that NeMo-Gym would serve, which takes long to start.

    Raises:
        UserError: one of the others does not start.
    """
    found = dict[str, frozenset[str] | None]()
    for one in environments:
        found[one.name] = None
        if one.by_nemo_gym:
            continue
        try:
            with TemporaryDirectory() as logs, serving(one, Path(logs) / "log") as server:
                found[one.name] = server.tools
        except UserError as error:
            raise UserError(error.message, f"see: nemotron env try {one.folder}") from error
    return found


def memory_mb(pid: int) -> int:
    """Main memory of a process in MB; 0 if unknown."""
    with suppress(OSError, ValueError, subprocess.SubprocessError):
        command = ["ps", "-o", "rss=", "-p", str(pid)]
        return (
            int(subprocess.run(command, capture_output=True, text=True, timeout=END_SECONDS, check=True).stdout) >> 10
        )
    return 0


def _command(environment: Environment, port: int) -> list[str]:
    """Command that serves an environment.

    Raises:
        UserError: NeMo-Gym is needed, but not installed, or has another version.
    """
    if not environment.by_nemo_gym:
        return [sys.executable, "-m", "nemotron_data.gym.small_server", str(environment.folder), str(port)]
    engine = environment_of(NEMO_GYM)
    assert engine is not None
    if engine.programs is None:
        raise UserError(
            f"environment '{environment.name}' needs NeMo-Gym, which is not installed", how_to_get(NEMO_GYM)
        )
    if (version := engine.versions()["nemo-gym"]) not in VERSIONS:
        known = " and ".join(VERSIONS)
        what = f"environment '{environment.name}': NeMo-Gym {version} is installed, and this works with {known}"
        raise UserError(what, f"install {VERSIONS[0]}: {engine.install}")
    return [
        str(engine.programs / "python"),
        str(PROGRAM),
        str(environment.folder),
        str(port),
        json.dumps(dict(environment.server)),
    ]
