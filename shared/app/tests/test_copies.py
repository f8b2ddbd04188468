"""A step in a copy of this process is like one in a process of its own: output, exit code, signals, end."""

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nemotron_app import copies
from nemotron_shared.runtime import machine

STEP = """
import atexit, os, signal, sys, time
class Step:
    def main(self):
        words = sys.argv[1:]
        print(" ".join(words), flush=True)
        if "atexit" in words:
            atexit.register(print, "finished", flush=True)
        if "killed" in words:
            os.kill(os.getpid(), signal.SIGKILL)
        if "fails" in words:
            raise RuntimeError("token hf_abcdefghijklmnopqrstuvwxyz0123456789")
        if "waits" in words:
            signal.signal(signal.SIGTERM, lambda *_: sys.exit(130))
            print("pid", os.getpid(), file=sys.stderr, flush=True)
            time.sleep(120)
        return 7 if "seven" in words else 0
STEP = Step()
"""
BEGIN = """
import importlib, os, sys
from pathlib import Path
from nemotron_app import copies
from nemotron_app.launch import run_process
copies.get_ready(dict.fromkeys(["own_step", "absent_step"], lambda: importlib.import_module("json")))
assert copies.can_run([sys.executable, "-m", "own_step"])
assert not copies.can_run([sys.executable, "-m", "absent_step"])
assert not copies.can_run(["/usr/bin/python3", "-m", "own_step"])
assert "TQDM_DISABLE" not in os.environ
def run(*words, stdout=None, meanwhile=None):
    return run_process([sys.executable, "-m", "own_step", *words], stdout, meanwhile)
"""


@pytest.fixture
def program(tmp_path: Path) -> Callable[[str], Any]:
    """Start a program that can run the step `own_step` in copies of itself."""
    (tmp_path / "own_step.py").write_text(STEP)
    environment = {name: value for name, value in os.environ.items() if name != "TQDM_DISABLE"}
    environment["PYTHONPATH"] = f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"

    def start(text: str) -> Any:
        command = [sys.executable, "-c", BEGIN + textwrap.dedent(text)]
        return subprocess.Popen(
            command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    return start


def test_a_step_that_was_killed_is_told(program: Callable[[str], Any]) -> None:
    done = program("""
        print(run("killed"))
        print(run_process([sys.executable, "-c", "import os; os.kill(os.getpid(), 9)", "stages.sft.data_prep"]))
    """)
    out, err = done.communicate()
    assert out == "killed\n1\n1\n"
    told = "error: the {} was killed by SIGKILL (out of memory?)\n  what is saved is kept: run the same command again\n"
    assert err == told.format("training") + told.format("data preparation")


def test_words_exit_code_and_output(program: Callable[[str], Any], tmp_path: Path) -> None:
    done = program("""
        with open("answer", "wb") as file:
            print(run("seven", stdout=file), flush=True)
        print(run("a", "b", "atexit"), flush=True)
    """)
    out, err = done.communicate()
    assert (done.returncode, err) == (0, "")
    assert out == "7\na b atexit\nfinished\n0\n"
    assert (tmp_path / "answer").read_text() == "seven\n"


def test_a_bug_shows_its_traceback_once_and_no_secret(program: Callable[[str], Any]) -> None:
    done = program("""
        from nemotron_shared.errors import exit_code_of
        sys.exit(exit_code_of(lambda: run("fails")))
    """)
    _, err = done.communicate()
    assert done.returncode == 1
    assert err.count("Traceback") == err.count("RuntimeError: token") == 1
    assert "hf_abc" not in err


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_it_ends_with_the_process_that_started_it(program: Callable[[str], Any], number: signal.Signals) -> None:
    parent = program('sys.exit(run("waits"))')
    while not (line := parent.stderr.readline()).startswith("pid"):
        assert line, "the step did not begin"
    step = int(line.split()[1])
    parent.send_signal(number)
    assert parent.wait() == (130 if number == signal.SIGTERM else -signal.SIGKILL)
    until = time.monotonic() + 60
    while Path(f"/proc/{step}").exists() and time.monotonic() < until:
        time.sleep(0.1)
    assert not Path(f"/proc/{step}").exists()


def test_what_is_done_meanwhile_keeps_no_signal_from_the_step(program: Callable[[str], Any], tmp_path: Path) -> None:
    """The step waits for ever; what is done meanwhile asks this process to end, and goes on to its own end."""
    done = program("""
        import os, signal, time
        def meanwhile(running):
            while not os.path.getsize("begun"):
                time.sleep(0.01)
            still = running()
            os.kill(os.getpid(), signal.SIGTERM)
            print("meanwhile", still, flush=True)
        with open("begun", "wb") as file:
            os.dup2(file.fileno(), 2)
        print(run("waits", meanwhile=meanwhile), flush=True)
    """)
    out, _ = done.communicate()
    assert out == "waits\nmeanwhile True\n130\n"
    assert (tmp_path / "begun").read_text().startswith("pid ")


def test_none_is_made_where_there_is_a_gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("threading.active_count", lambda: 1)  # the tests' own process has more
    monkeypatch.setattr(machine, "ACCELERATORS", (tmp_path / "none",))
    assert copies.possible()
    monkeypatch.setattr(machine, "ACCELERATORS", (tmp_path / "none", tmp_path))
    assert not copies.possible()
