"""A child ends with its parent, also when that is killed and cannot say so."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from nemotron_shared.system.process import ENDING, end_group, ending_with_us, forking

PATIENCE = 300.0
# A parent that starts argv[2:] as its child and waits; the child's standard output is the parent's.
PARENT = """
import subprocess, sys
from nemotron_shared.system.process import ending_with_us
group = sys.argv[1] == "group"
subprocess.Popen(ending_with_us(sys.argv[2:], group=group), start_new_session=group).wait()
"""
NOTES_SIGTERM = """
import pathlib, signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: (time.sleep(1), pathlib.Path(sys.argv[1]).write_text("saved"), sys.exit()))
print("ready", flush=True)
while True: time.sleep(0.1)
"""
STARTS_ANOTHER = """
import subprocess, sys
subprocess.Popen([sys.executable, "-c", sys.argv[1], sys.argv[2]]).wait()
"""


def start(kind: str, *command: str) -> subprocess.Popen[str]:
    """A parent whose child is ready."""
    line = [sys.executable, "-c", PARENT, kind, sys.executable, "-c", *command]
    parent = subprocess.Popen(line, stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    assert parent.stdout.readline() == "ready\n"
    return parent


def wait_for(file: Path) -> None:
    until = time.monotonic() + PATIENCE
    while not (file.exists() and file.read_text()):
        assert time.monotonic() < until, "the child goes on without its parent"
        time.sleep(0.02)


def test_the_child_of_a_killed_parent_gets_sigterm(tmp_path: Path) -> None:
    parent = start("alone", NOTES_SIGTERM, str(tmp_path / "note"))
    parent.kill()
    wait_for(tmp_path / "note")


def test_a_group_ends_with_what_it_started(tmp_path: Path) -> None:
    parent = start("group", STARTS_ANOTHER, NOTES_SIGTERM, str(tmp_path / "note"))
    parent.kill()
    wait_for(tmp_path / "note")


def test_a_group_ended_from_outside_has_time_to_save(tmp_path: Path) -> None:
    note = tmp_path / "note"
    command = [sys.executable, "-c", STARTS_ANOTHER, NOTES_SIGTERM, str(note)]
    process = subprocess.Popen(ending_with_us(command, group=True), stdout=subprocess.PIPE, start_new_session=True)
    assert process.stdout is not None
    process.stdout.readline()
    end_group(process)
    assert note.read_text() == "saved"


def test_a_group_that_does_not_heed_sigterm_is_killed() -> None:
    deaf = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(1, flush=True); time.sleep(600)"
    command = ending_with_us([sys.executable, "-c", deaf], group=True)
    process = subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True)
    assert process.stdout is not None
    process.stdout.readline()
    end_group(process, grace=0.2)
    assert process.stdout.read() == b""  # nobody holds its other end any more
    assert process.returncode == -signal.SIGKILL


@pytest.mark.parametrize("group", [False, True])
@pytest.mark.parametrize(("ending", "code"), [("sys.exit(3)", 3), ("os.kill(os.getpid(), 9)", -9)])
def test_the_exit_code_is_the_command_s(ending: str, code: int, group: bool) -> None:
    command = ending_with_us([sys.executable, "-c", f"import os, sys; {ending}"], group=group)
    assert subprocess.run(command, check=False, start_new_session=group).returncode == code


def test_a_child_whose_parent_is_gone_before_it_begins_ends() -> None:
    command = ending_with_us([sys.executable, "-c", "import time; time.sleep(600)"])
    command[command.index(str(os.getpid()))] = str(os.getpid() + 1)
    assert subprocess.run(command, check=False).returncode == -signal.SIGTERM


IMPORTS = """
import sys, time
print("importing", flush=True)
time.sleep(1)
if __name__ == "__main__":
    from nemotron_shared.system.program import exit_code_of
    from nemotron_shared.system.process import heed_signals
    from nemotron_shared.system.stop import end_on_sigterm
    end_on_sigterm()
    sys.exit(exit_code_of(lambda: heed_signals() or time.sleep(60)))
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_what_comes_while_a_script_imports_is_heeded_by_the_script(tmp_path: Path, number: signal.Signals) -> None:
    (tmp_path / "stages" / "slow").mkdir(parents=True)
    (tmp_path / "stages" / "slow" / "train.py").write_text(IMPORTS)
    process = subprocess.Popen(
        ending_with_us([sys.executable, "-m", "stages.slow.train"]),
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "importing\n"
    process.send_signal(number)
    said = process.communicate(timeout=PATIENCE)[1]
    assert (process.returncode, said) == (130, "interrupted; run the same command again to continue\n")


def test_another_program_heeds_a_signal_at_once() -> None:
    command = ending_with_us([sys.executable, "-c", "import time; print(1, flush=True); time.sleep(600)"])
    process = subprocess.Popen(command, stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    process.terminate()
    assert process.wait(PATIENCE) == -signal.SIGTERM


def test_a_signal_waits_until_a_copy_was_made() -> None:
    came = []
    before = signal.signal(signal.SIGTERM, lambda *_: came.append("came"))
    try:
        with forking():
            os.kill(os.getpid(), signal.SIGTERM)
            came.append("forked")
        until = time.monotonic() + 60
        while len(came) < 2 and time.monotonic() < until:  # another thread may have taken it, and be slow
            time.sleep(0.01)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert came == ["forked", "came"]
    assert not ENDING & signal.pthread_sigmask(signal.SIG_BLOCK, ())
