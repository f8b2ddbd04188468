"""What the tests of jobs share: a profile of the test cluster, and the commands that a person would type there."""

import re
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from slurm_support import Cluster
from support import nemotron

PROFILE = """
[test-slurm]
executor = "slurm"
partition = "batch"
nodes = 2
time = "30"
secrets = ["HF_TOKEN", "PLANTED_TOKEN"]
python = "{python}"
signal_lead = 20
{more}
[test-slurm.env_vars]
OMP_NUM_THREADS = "1"
[test-slurm.set]
"run.threads" = 1
"""
QUICK = {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}


class Desk:
    """A working folder on the head of a cluster, with an env.toml and a store of its own."""

    def __init__(self, cluster: Cluster, name: str, more: str = "") -> None:
        self.cluster = cluster
        self.folder = cluster.shared / name
        self.folder.mkdir(parents=True)
        (self.folder / "env.toml").write_text(PROFILE.format(python=sys.executable, more=more))
        self.environment = QUICK | {"NEMOTRON_HOME": str(self.folder / "store")}

    def command(self, *words: str) -> list[str]:
        """A command of `nemotron` on the head, as an argument list."""
        return self.cluster.command("head", *nemotron(*words))

    def run(self, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """Type a command on the head."""
        return self.cluster.run("head", *nemotron(*words), env=self.environment | environment, cwd=self.folder)

    def batch(self, *words: str, **environment: str) -> str:
        """Submit with --batch; returns the job's id."""
        result = self.run(*words, "--batch", "test-slurm", **environment)
        found = re.search(r"submitted job (\d+)", result.stdout)
        assert result.returncode == 0 and found, result.stdout + result.stderr
        return found[1]

    def job(self, number: str) -> Path:
        """The folder of a job."""
        records = self.folder.glob("store/jobs/*/job.json")
        found = [one.parent for one in records if f'"id": "{number}"' in one.read_text()]
        assert len(found) == 1, found
        return found[0]

    def log(self, number: str) -> str:
        """What a job has said."""
        return (self.job(number) / "log.txt").read_text(errors="replace")

    def processes(self, module: str) -> list[int]:
        """The processes of a module in jobs of this desk, by their numbers on this machine, which sees all nodes."""
        found = []
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            with suppress(OSError):
                words = path.read_bytes().split(b"\0")
                if module.encode() in words and str(self.folder).encode() in path.with_name("environ").read_bytes():
                    found.append(int(path.parent.name))
        return found

    def wait(self, number: str, minutes: float = 10) -> int:
        """Wait until a job has ended; returns the exit code that it wrote."""
        code = self.job(number) / "exit_code"
        self.cluster.wait_until(lambda: code.exists() or self._is_gone(number), minutes)
        assert code.exists(), f"job {number} ended without a word\n{self.log(number)}"
        return int(code.read_text())

    def _is_gone(self, number: str) -> bool:
        return self.cluster.state(number) in ("FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "COMPLETED")
