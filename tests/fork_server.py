"""Run commands in forks of a process that has imported everything: importing takes longer than a tiny training.

    python fork_server.py SOCKET light|heavy

A client connects, sends one JSON line {"argv": [...], "cwd": ..., "env": {...}, "group": false} with the files for
the command's stdout and stderr, and reads two lines: the process id, and at the end the exit code. Commands that start
steps (`nemotron super3 sft`), and torchrun, ask the servers for what they start, too. `heavy` has torch and all
training libraries; `light` does not, like the real process of a preparation. In the environment of an engine, `heavy`
has that engine, with its stand-ins for a GPU.
"""

import atexit
import gc
import importlib
import importlib.util
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any, NoReturn

STAGES = ("pretrain", "sft", "rl", "eval")
TORCHRUN, OURS = "torch.distributed.run", "nemotron_shared.engine.torchrun"
LIGHT = ["nemotron_app.main", *(f"stages.{stage}.{verb}" for stage in STAGES for verb in ("data_prep", "train"))]
HEAVY = [
    *LIGHT,
    *(f"stages.{stage}.engines.transformers.train" for stage in ("pretrain", "sft")),
    "stages.rl.engines.trl.train",
    "stages.eval.engines.lm_eval.ask",
    TORCHRUN,
    "transformers.models.nemotron_h.modeling_nemotron_h",
]
SUPERVISED = [
    "nemotron_app.main",
    *(f"stages.{stage}.{verb}" for stage in STAGES[:2] for verb in ("data_prep", "train")),
]
ENGINES = {
    "nemo_automodel": [
        *SUPERVISED,
        *(f"stages.{stage}.engines.automodel.train" for stage in STAGES[:2]),
        "nemotron_engines.stand_ins.automodel:install",
        "nemotron_engines.automodel.recipe",
    ],
    "megatron.bridge": [
        *SUPERVISED,
        *(f"stages.{stage}.engines.megatron_bridge.train" for stage in STAGES[:2]),
        "nemotron_engines.stand_ins.transformer_engine:install_stubs",
        "megatron.bridge.training.gpt_step",
        "megatron.bridge.training.pretrain",
    ],
}
"""Imports of `heavy`, if the library is installed: modules, and functions that patch later imports."""


def serve(path: str, modules: list[str]) -> tuple[dict[str, Any], list[int]]:
    """Serve until the tests end. Returns only in a fork that is to run a command: what to run, and its files."""
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(path)
        listening.listen(64)
        listening.settimeout(2)
        tests = os.getppid()
        while os.getppid() == tests:
            try:
                connection, _ = listening.accept()
            except TimeoutError:
                continue
            line, files, _, _ = socket.recv_fds(connection, 1 << 20, 2)
            while not line.endswith(b"\n"):
                line += connection.recv(1 << 20)
            if modules:  # at the first request: many test runs never need it
                for name in modules:
                    module, _, function = name.partition(":")
                    found = importlib.import_module(module)
                    if function:
                        getattr(found, function)()
                importlib.import_module("parsed_once").install(modules)
                importlib.import_module("advised").install()
                importlib.import_module("forked_rehearsals").install()
                gc.collect()
                gc.freeze()  # or each fork copies these pages as soon as its collector looks at them
                note_cpu(path, time.process_time(), "imports")
                modules = []
            signal.signal(signal.SIGCHLD, signal.SIG_IGN)
            if os.fork() == 0:
                listening.close()
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                if (command := os.fork()) == 0:
                    connection.close()
                    return json.loads(line), files
                if json.loads(line)["group"]:
                    os.setpgid(command, command)  # before anyone knows whom to signal
                connection.sendall(f"{command}\n".encode())
                _, status, usage = os.wait4(command, 0)
                note_cpu(path, usage.ru_utime + usage.ru_stime, json.loads(line)["env"].get("PYTEST_CURRENT_TEST", ""))
                connection.sendall(f"{os.waitstatus_to_exitcode(status)}\n".encode())
                os._exit(0)
            connection.close()
            for file in files:
                os.close(file)
    sys.exit()


def note_cpu(path: str, seconds: float, what: str) -> None:
    """Append a line to a file next to the server's socket; the tests' summary adds them up."""
    with Path(path).with_name("cpu_seconds").open("a") as file:
        file.write(f"{seconds:.2f} {what}\n")


def run(request: dict[str, Any], files: list[int]) -> object:
    """Set this process up to look like a new process for the command."""
    for number, file in enumerate(files, start=1):
        os.dup2(file, number)
        os.close(file)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    program, *words = request["argv"][1:]
    launch = importlib.import_module("nemotron_app.launch")
    launch.run_process = run_again
    if program == "-m":
        program, *words = words
        if program in (TORCHRUN, OURS):
            handler = "torch.distributed.elastic.multiprocessing.subprocess_handler.subprocess_handler"
            importlib.import_module(handler).SubprocessHandler._popen = start_rank
    elif Path(program).parent.parent.name == "stages":
        program = f"stages.{Path(program).parent.name}.{Path(program).stem}"
    sys.argv = [program, *words]
    if program.endswith(".py"):
        subprocess.run = run_forked_where_possible
        subprocess.Popen = InGroup  # type: ignore[misc]
        sys.path.insert(0, str(Path(program).parent))
        return runpy.run_path(program, run_name="__main__") and 0
    if program == OURS:
        return runpy.run_module(program, run_name="__main__") and 0
    return importlib.import_module(program).main(words)


def run_again(command: list[str], stdout: Any = None, libraries: object = None) -> int:
    """Replacement for the function with which `nemotron` starts a step."""
    from support import Forked

    sys.stdout.flush()
    return Forked(command, Path.cwd(), os.environ, stdout or sys.stdout, sys.stderr).wait()


def run_forked_where_possible(command: Any, run: Any = subprocess.run, **options: Any) -> Any:
    """Replacement for the function with which our own programs start commands and capture what they say."""
    from support import can_be_forked, run_forked

    captured = options.get("capture_output") or options.get("stdout") == subprocess.PIPE
    if not (captured and can_be_forked(command)):
        return run(command, **options)
    stderr = options.get("stderr")
    done = run_forked(command, options.get("cwd") or Path.cwd(), options.get("env") or os.environ, stderr)
    if not options.get("text"):
        done.stdout, done.stderr = done.stdout.encode(), done.stderr.encode()  # type: ignore[assignment]
    return done


class InGroup(subprocess.Popen):
    """Replacement for the class with which our own programs start one in a group of its own, and write into a file."""

    def __new__(cls, command: Any, **options: Any) -> Any:
        from support import Forked, can_be_forked

        file = options.get("stdout")
        grouped = options.get("start_new_session") and options.get("stderr") == subprocess.STDOUT
        if grouped and hasattr(file, "fileno") and can_be_forked(command):
            return Forked(command, options["cwd"], options["env"], file, file, group=True)
        return super().__new__(cls)


def start_rank(handler: Any, command: tuple[str, ...], environment: dict[str, str]) -> Any:
    """Replacement for the method with which torchrun starts a process."""
    from support import Forked

    sys.stdout.flush()
    stdout, stderr = handler._stdout or sys.stdout, handler._stderr or sys.stderr
    return Forked([sys.executable, *command[command.index("-u") + 1 :]], Path.cwd(), environment, stdout, stderr, True)


def leave(code: object) -> NoReturn:
    """Exit as `sys.exit` does, but do not free object after object: with torch imported, that takes two seconds."""
    if not isinstance(code, int | None):
        print(code, file=sys.stderr)
        code = 1
    threading._shutdown()  # type: ignore[attr-defined]  # waits for threads, as the interpreter does
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit((code or 0) & 0xFF)


def heavy() -> list[str]:
    """Modules that train in this environment."""
    here = (modules for library, modules in ENGINES.items() if is_installed(library))
    return next(here, HEAVY)


def is_installed(library: str) -> bool:
    """Whether a module and its package can be imported."""
    try:
        return importlib.util.find_spec(library) is not None
    except ModuleNotFoundError:
        return False


if __name__ == "__main__":
    request, files = serve(sys.argv[1], heavy() if sys.argv[2] == "heavy" else LIGHT)
    try:
        code = run(request, files)
    except SystemExit as ended:
        code = ended.code
    leave(code)
