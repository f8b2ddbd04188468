"""Steps that are forked from the process of their command, and from one that has imported libraries for them."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

STEP = """
import atexit, json, os, signal, sys, threading, time
from nemotron_shared.system.process import heed_signals

def main():
    heed_signals()
    what, *words = sys.argv[1:]
    if what == "tell":
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, ())
        print(json.dumps({
            "words": words, "program": sys.argv[0], "parent": os.getppid(), "has library": "library" in sys.modules,
            "handler": signal.getsignal(signal.SIGTERM) is signal.SIG_DFL, "blocked": len(blocked),
        }))
        return 3
    if what == "leave":
        atexit.register(lambda: print("at exit", flush=True))
        threading.Thread(target=lambda: (time.sleep(0.2), print("thread", flush=True))).start()
        return 0
    if what == "text":
        sys.exit("said as it ended")
    if what == "fail":
        raise ValueError("a fault")
    if what == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    if what == "wait":
        signal.signal(signal.SIGTERM, lambda *_: (print("stopped", flush=True), os._exit(7)))
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        print(os.getpid(), flush=True)
        time.sleep(60)
"""
BEGIN = """
import os, sys, tempfile
from pathlib import Path
from nemotron_app import copies
from nemotron_app.copies import copying, copy_of, note_made

def run(*words, libraries=()):
    made = copy_of("one_step", words, None, libraries)
    return made and made.wait()
"""


@pytest.fixture
def program(tmp_path: Path):
    """Run a program in a folder with a step and a library; returns the process, with its output if it has ended."""
    (tmp_path / "one_step.py").write_text(STEP)
    (tmp_path / "library.py").write_text("import os\nPLACE = os.getpid()\nopen('imported', 'a').write('once ')\n")

    def start(text: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-c", BEGIN + text], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            text=True, start_new_session=True, env=os.environ | {"PYTHONPATH": str(tmp_path), "PYTHONSAFEPATH": "1"},
        )  # fmt: skip

    return start


def ended(process: subprocess.Popen[str]) -> tuple[str, str]:
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    return out, err


BOTH = pytest.mark.parametrize("libraries", [(), ("library",)], ids=["of the command", "of the libraries"])


@BOTH
def test_a_copy_reads_its_words_and_ends_like_a_process(program, libraries: tuple[str, ...]) -> None:
    out, err = ended(
        program(f"""
with copying():
    note_made(reused=False)
    codes = [run(what, libraries={libraries}) for what in ("tell", "leave", "text", "fail", "die", "tell")]
    print(codes)
    print(os.getpid())
""")
    )
    first, *between, again, codes, command = out.splitlines()
    told = json.loads(first)
    assert (told["words"], Path(told["program"]).name, told["handler"], told["blocked"]) == ([], "one_step.py", True, 0)
    assert told["has library"] is bool(libraries)
    assert (told["parent"] == int(command)) is not bool(libraries)
    assert json.loads(again) == told, "those before it left nothing behind"
    assert between == ["thread", "at exit"], "it waits for threads, and calls what was to be called at its exit"
    assert json.loads(codes) == [3, 0, 1, 1, -signal.SIGKILL, 3]
    assert "said as it ended" in err and "ValueError: a fault" in err


def test_libraries_are_imported_once_and_only_after_something_was_made(program, tmp_path: Path) -> None:
    ended(
        program("""
with copying():
    note_made(reused=True)
    assert run("tell", libraries=["library"]) == 3
    assert not Path("imported").exists()
    note_made(reused=False)
    note_made(reused=True)
    assert [run("tell", libraries=["library"]) for _ in range(3)] == [3] * 3
assert copy_of("one_step", ["tell"], None, ()) is None, "only within"
""")
    )
    assert (tmp_path / "imported").read_text() == "once "


def test_a_step_gets_a_process_of_its_own_where_a_copy_would_differ(program) -> None:
    """After an edit it would run other code than its digest says; beside threads, locks may be held."""
    ended(
        program("""
import threading
with copying():
    note_made(reused=False)
    assert run("tell", libraries=["not_there"]) is None
    assert run("tell", libraries=["library"]) == 3
    Path("library.py").write_text("edited = True")
    assert run("tell", libraries=["library"]) is None, "the process that has imported it looks, too"
    assert run("tell") == 3
    ended = threading.Event()
    thread = threading.Thread(target=ended.wait)
    thread.start()
    assert run("tell") is None
    ended.set()
    thread.join()
    assert run("tell") == 3
    import library
    assert run("tell") == 3
    Path("library.py").write_text("edited = 'again'")
    assert run("tell") is None
""")
    )


def test_copies_remove_nothing_that_the_command_has_open(program) -> None:
    ended(
        program("""
from nemotron_app.launch import _folder
with copying(), _folder() as folder:
    (folder / "composed.yaml").touch()
    assert run("leave") == 0
    assert (folder / "composed.yaml").exists()
assert not folder.exists()
""")
    )


def test_a_copy_that_fails_to_begin_does_nothing_else(program) -> None:
    """It would go on as the command: clean up, and say that the command failed."""
    out, err = ended(
        program("""
failing = copies._fork(lambda: 1 / 0)
importer = copies._Importer()
importer._answers.close()
importer._socket.close()  # as Linux does when the command is killed
print([os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in (failing, importer._pid)])
""")
    )
    assert out == "[1, 0]\n"
    assert err.count("Traceback") == err.count("ZeroDivisionError") == 1, err


@BOTH
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_copy_ends_with_its_command(program, libraries: tuple[str, ...], number: int) -> None:
    process = program(f"with copying():\n    note_made(reused=False)\n    run('wait', libraries={libraries})")
    step = int(process.stdout.readline())
    process.send_signal(number)
    assert process.stdout.readline() == "stopped\n", "it can save"
    process.wait()
    _wait_for_end(step)


@BOTH
def test_a_signal_to_all_processes_reaches_the_step_alone(program, libraries: tuple[str, ...]) -> None:
    """Ctrl-C in a terminal: the command passes it on, the step saves, and its exit code is told."""
    process = program(f"""
import nemotron_app.launch as launch
launch.is_ours = lambda command: True
with copying():
    note_made(reused=False)
    print(launch.run_process([sys.executable, "-m", "one_step", "wait"], libraries={libraries}))
""")
    int(process.stdout.readline())
    _wait_until_it_passes_signals_on(process.pid)
    os.killpg(process.pid, signal.SIGINT)
    time.sleep(0.2)
    process.send_signal(signal.SIGTERM)
    out, err = ended(process)
    assert out.split() == ["stopped", "7"], err


def _wait_until_it_passes_signals_on(pid: int) -> None:
    """A step may run a moment before its command handles signals, which it blocks while it forks."""
    asked = 1 << (signal.SIGTERM - 1)
    while True:
        status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
        masks = {name: int(mask, 16) for name, mask in re.findall(r"^Sig(Blk|Cgt):\s*(\w+)", status, re.MULTILINE)}
        if masks["Cgt"] & asked and not masks["Blk"] & asked:
            return
        time.sleep(0.01)


def _wait_for_end(pid: int) -> None:
    while Path(f"/proc/{pid}").exists():
        time.sleep(0.01)
