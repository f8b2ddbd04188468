"""Jobs whose step is a few lines of Python, in a folder as the command makes it."""

import platform
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from nemotron_cluster.backends import OVER, Backend, State
from nemotron_cluster.job import CODE, CONFIG, CONFIG_FILE, Job, Record, new_folder
from nemotron_cluster.profiles import PROFILES, Profile

PATIENCE = 300.0
PLANTED = "hf_" + "planted" * 6

STEP = """
import os, signal, sys, time
config = open(sys.argv[1]).read().strip()
def save(number, frame):
    print("saved", flush=True)
    sys.exit(130)
signal.signal(signal.SIGTERM, save)
print("step:", config, sys.argv[2:], os.environ.get("PLACE"), "token" if os.environ.get("HF_TOKEN") else "no token",
      "rank", os.environ.get("RANK", "-"), "of", os.environ.get("WORLD_SIZE", "-"), flush=True)
if config.startswith("sleep"):
    time.sleep(600)
sys.exit(int(config.split()[1]))
"""


def profile_of(executor: str, **keys: Any) -> Profile:
    return PROFILES[executor].model_validate({"executor": executor, **keys})


def job_of(**keys: Any) -> Job:
    return Job(**{"name": "super3-sft", "command": ("-m", "step", CONFIG, "a b"), "python": sys.executable, **keys})


def write_programs(folder: Path, programs: Mapping[str, str]) -> None:
    """Programs that stand in for others, for a PATH."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in programs.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)


def folder_of(within: Path, config: str = "exit 0") -> Path:
    folder = new_folder("super3-sft", within / "jobs")
    (folder / CODE).mkdir()
    (folder / CODE / "step.py").write_text(STEP)
    (folder / CONFIG_FILE).write_text(f"{config}\n")
    return folder


def submitted(backend: Backend, job: Job, folder: Path) -> Record:
    identity = backend.submit(job, folder)
    place = str(backend.there(folder))
    return Record(job.name, "p", "local", str(folder), place, platform.node(), "2026-11-23T02:00:00", "x", identity)


def wait_for(what: Callable[[], Any]) -> Any:
    """Wait until a condition holds; returns its value."""
    end = time.monotonic() + PATIENCE
    while not (found := what()):
        assert time.monotonic() < end, "nothing happened"
        time.sleep(0.1)
    return found


def ended(backend: Backend, record: Record) -> State:
    wait_for(lambda: backend.state(record).state in OVER)
    return backend.state(record)


def said(backend: Backend, record: Record) -> str:
    return (backend.log(record) or b"").decode()
