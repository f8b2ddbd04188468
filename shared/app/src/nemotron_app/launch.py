"""Run a stage's script as a child process, and forward the user's signals to it; or here, if it is only asked.

A dry run takes as long as its imports, which this process has made already: it has composed the config. Other steps get
a process of their own, a fork of this one where a command starts several (`copies`), and so do engines with an
environment of their own.
"""

import importlib
import importlib.util
import io
import json
import shutil
import signal
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import IO, Any

from nemotron_app.copies import copy_of, note_made
from nemotron_app.request import Request
from nemotron_shared.artifacts import Store
from nemotron_shared.artifacts.starting import inputs_kept, named_inputs
from nemotron_shared.config.compose import Composed, compose, find_config, shared_groups, write_composed
from nemotron_shared.config.overrides import COMMAND_LINE, TRUST, is_at, is_group, override_key
from nemotron_shared.config.references import engine_of, leaf_keys, resolve_section
from nemotron_shared.config.translation import dialects, understanding
from nemotron_shared.engine.engine import Engine
from nemotron_shared.families import families
from nemotron_shared.machine.environments import python_for_step
from nemotron_shared.stages import STAGES
from nemotron_shared.system.console import say
from nemotron_shared.system.errors import UserError, did_you_mean
from nemotron_shared.system.process import ending_with_us, launch_command
from nemotron_shared.system.program import INTERRUPTED, INTERRUPTED_EXIT_CODE
from nemotron_shared.system.stop import STOPPED_EXIT_CODE, end_on_sigterm

KILLED_EXIT_CODE = 1


def run_step(stage: str, verb: str, request: Request, *options: str) -> int:
    """Run one step and return its exit code."""
    with step_process(stage, verb, request, *options) as command:
        return run_here(command) if request.dry_run and is_ours(command) else run_process(command)


def ask_step(stage: str, verb: str, request: Request, *options: str) -> tuple[int, dict[str, Any]]:
    """Run one step; returns its exit code and its JSON output, which is empty if it failed."""
    asked = replace(request, json=True)
    with tempfile.TemporaryFile() as answer, step_process(stage, verb, asked, *options) as command:
        code = run_process(command, answer, libraries_of(stage, verb, request))
        answer.seek(0)
        told = {} if code else json.loads(answer.read())
    note_made(told.get("reused", True))
    return code, told


def dry_run_of(
    stage: str, request: Request, machine: Mapping[str, Any] | None = None, *, config_alone: bool = False
) -> dict[str, Any]:
    """The JSON output of a training's dry run, including any problems it found.

    Args:
        machine: the machine to assume instead of this one, in the format of `--machine`.
        config_alone: check only inputs that the user named.

    Raises:
        UserError: invalid config, or a dry run that broke off, with all that it said.
        KeyboardInterrupt: it was interrupted, and so is its caller.
    """
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "machine.yaml" if machine else None
        if file is not None:
            file.write_text(json.dumps(machine), encoding="utf-8")
        asked = replace(request, dry_run=True, json=True, machine=file)
        with step_process(stage, "train", asked, *(["--config-alone"] if config_alone else [])) as command:
            code, shown, said = _captured(command)
    if code == INTERRUPTED_EXIT_CODE:
        raise KeyboardInterrupt(said.strip().rpartition(INTERRUPTED)[2])
    if code not in (0, 1) or not shown.startswith("{"):
        message, _, remedy = said.strip().removeprefix("error: ").partition("\n")
        raise UserError(message or "the dry run said nothing", remedy.strip() or None)
    return json.loads(shown)


def _captured(command: Sequence[str]) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of a dry run."""
    if not is_ours(command):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        return done.returncode, done.stdout, done.stderr
    shown, said = io.StringIO(), io.StringIO()
    try:
        with redirect_stdout(shown), redirect_stderr(said):
            code = run_here(command)
    except (SystemExit, Exception) as error:  # else what it said before would be lost
        told = said.getvalue() if isinstance(error, SystemExit) else f"{said.getvalue()}{traceback.format_exc()}"
        raise UserError(f"the dry run ended with {type(error).__name__}: {error}", told.strip() or None) from error
    return code, shown.getvalue(), said.getvalue()


@contextmanager
def step_process(stage: str, verb: str, request: Request, *options: str) -> Generator[list[str]]:
    """The command line of one step's process, which reads the composed config from a file as long as this is open."""
    with _folder() as folder, _inputs_kept(stage, request):
        file = folder / "composed.yaml"
        write_composed(file, composed(stage, request))
        command = [*start_command(stage, verb, request), "--composed", str(file)]
        command += ["--dry-run"] if request.dry_run else []
        command += ["--machine", str(request.machine)] if request.machine else []
        command += ["--json"] if request.json else []
        command += ["--trust-code"] if request.trust_code else []
        yield [*command, *options]


@contextmanager
def _folder() -> Generator[Path]:
    """A temporary folder. Not a `TemporaryDirectory`: a copy of this process would remove that as it exits."""
    folder = tempfile.mkdtemp(prefix="nemotron-step-")
    try:
        yield Path(folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _inputs_kept(stage: str, request: Request) -> Generator[None]:
    """Keep what a step names from being removed, from before its process is there until it ends."""
    run: Mapping[str, Any] = {}
    with suppress(UserError):  # the step itself reports the error
        run = {} if request.dry_run else resolve_section(composed(stage, request).tree, "run")
    store = Store.open(run.get("home"))
    with inputs_kept(store, named_inputs(store, run)):
        yield


def config_of(request: Request, stage: str) -> str:
    """The config of a stage for a request. Without `-c`, the recipe named after the family.

    Raises:
        UserError: the family has no such recipe.
    """
    family = families()[request.family]
    config = family.config(stage, request.config or request.family)
    own = request.config is None and config == request.family
    if own and not (stage_directory(stage) / "config" / f"{config}.yaml").is_file():
        raise UserError(
            f"{request.family} has no recipe for {stage}",
            f"for your own data, say: nemotron {request.family} {' '.join(request.command)} -c local",
        )
    return config


def composed(stage: str, request: Request) -> Composed:
    """The composed config of a stage, cached per request: a pipeline needs it nearly twenty times."""
    key = stage, config_of(request, stage), request.overrides
    if key not in request.composed:
        request.composed[key] = compose(stage_directory(stage) / "config", *key[1:])
    return request.composed[key]


def stage_directory(stage: str) -> Path:
    """Folder of an installed stage.

    Raises:
        UserError: the stage's package is not installed.
    """
    try:
        found = importlib.util.find_spec(f"stages.{stage}.train")
    except ModuleNotFoundError:
        found = None
    if found is None or found.origin is None:
        raise UserError(f"the stage '{stage}' is not installed here", f"install the package nemotron-{stage}")
    return Path(found.origin).parent


def start_command(stage: str, verb: str, request: Request) -> list[str]:
    """The command that starts a step: the engine's own launcher, a single process, or torchrun.

    Unknown engines are left to the step, whose error says where the engine was set.
    """
    module = f"stages.{stage}.{verb}"
    tree = composed(stage, request).tree
    name = engine_of(tree)
    engine = _engine(stage, verb, name)
    python = python_for_step(name) if engine and name else sys.executable
    if request.dry_run:  # a dry run needs only one process
        command = launch_command(module, 1)
    else:
        processes = int(resolve_section(tree, "run")["nproc_per_node"])
        command = engine.command(module, processes) if engine else launch_command(module, processes)
    return [python if word == sys.executable else word for word in command]


def _engine(stage: str, verb: str, name: str | None) -> Engine[Any] | None:
    """The engine of a step; None for data, which has none, and for an unknown one."""
    engines = importlib.import_module(f"stages.{stage}.engines").ENGINES
    return engines.load(name)() if verb == "train" and name in engines.places() else None


def libraries_of(stage: str, verb: str, request: Request) -> Sequence[str]:
    """Modules that a step's work begins with, if they take long to import; empty for data."""
    engine = _engine(stage, verb, engine_of(composed(stage, request).tree))
    return engine.begins_with if engine else ()


def is_ours(command: Sequence[str]) -> bool:
    """Whether a command is one process of this Python: no launcher, and no environment of an engine."""
    return list(command[:2]) == [sys.executable, "-m"] and command[2].startswith("stages.")


def module_and_words(command: Sequence[str]) -> tuple[str, list[str]]:
    """The module of a command that is ours, and the words that its `main` is called with."""
    _, _, module, *words = command
    return module, words


def run_here(command: Sequence[str]) -> int:
    """Run the dry run of a step in this process, as its command would; returns the exit code."""
    module, words = module_and_words(command)
    before = signal.getsignal(signal.SIGTERM)
    end_on_sigterm()  # as the step's own process does: a rehearsal may have files to remove
    try:
        return importlib.import_module(module).main(words)
    finally:
        signal.signal(signal.SIGTERM, before)


def run_process(command: Sequence[str], stdout: IO[bytes] | None = None, libraries: Sequence[str] = ()) -> int:
    """Run a command and return its exit code. Forwards every SIGTERM and SIGINT; the child dies with this process.

    The child gets Ctrl-C twice, from the terminal and from here; steps treat simultaneous signals as one request.
    A process that was killed by another signal cannot report it, so report it here.

    Args:
        libraries: see `copies.copy_of`.
    """
    copy = copy_of(*module_and_words(command), stdout, libraries) if is_ours(command) else None
    process = copy or subprocess.Popen(ending_with_us(command), stdout=stdout)
    stopping = False

    def pass_on(number: int, frame: FrameType | None) -> None:
        nonlocal stopping
        stopping = True
        process.send_signal(number)

    before = {number: signal.signal(number, pass_on) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        code = process.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if code >= 0:
        return code
    if stopping and -code in before:  # the signal arrived before the step had installed its handlers
        return STOPPED_EXIT_CODE
    say(f"error: {_killed(command, -code)}")  # on a terminal, in the place of the line that the step last showed
    return KILLED_EXIT_CODE


def _killed(command: Sequence[str], number: int) -> str:
    """The message for a step that was killed by a signal."""
    module = next((word for word in command if word.startswith("stages.")), "")
    what = "data preparation" if module.endswith(".data_prep") else "evaluation" if ".eval." in module else "training"
    known = number in {*signal.Signals}
    name = signal.Signals(number).name if known else f"signal {number}"
    why, remedy = "", "what is saved is kept: run the same command again"
    if number == signal.SIGKILL:
        why = " (out of memory?)"
        remedy += ", with a smaller train.micro_batch_size if memory ran out" if what == "training" else ""
    return f"the {what} was killed by {name}{why}\n  {remedy}"


# Decide which stages of a pipeline an override applies to.
#
# sft.train.train_iters=100     only that stage
# train.train_iters=100         every stage that trains: the evaluation has no such setting
# policy.precision=float32      every stage whose engine's library has such a key

CONSENT = "engine.allow_experimental=true"


@dataclass(frozen=True)
class _Settings:
    """Known settings of a stage's config, with the selected engine."""

    groups: Sequence[str]
    keys: Sequence[str]
    engine: str | None


def for_one_stage(override: str, stage: str) -> str | None:
    """An override without its stage prefix; None if it is meant for another stage."""
    sign = override[: len(override) - len(override.lstrip("+~"))]
    first, dot, rest = override[len(sign) :].partition(".")
    if not dot or first not in STAGES:
        return override
    return f"{sign}{rest}" if first == stage else None


def consenting(request: Request) -> Request:
    """The request with the settings that --allow-experimental implies for the engines."""
    if request.command[0] == "data":
        return request
    several = request.command == ("pipeline",)
    found = []
    for stage in families()[request.family].stages if several else request.command:
        own = tuple(one for text in request.without_machine().overrides if (one := for_one_stage(text, stage)))
        engine = None
        with suppress(UserError):  # the command itself reports the error
            engine = composed(stage, replace(request, overrides=own)).tree.engine
        if "allow_experimental" in (engine or {}):
            found.append(f"{stage}.{CONSENT}" if several else CONSENT)
    return replace(request, overrides=(*found, *request.overrides))


def stages_with(override: str, request: Request) -> Sequence[str]:
    """The stages that an override without a stage prefix applies to.

    Raises:
        UserError: no stage has such a setting.
    """
    stages, key = families()[request.family].stages, override_key(override)
    if key == "run.family":  # `nemotron` itself sets the family, for all stages
        return stages
    found = {stage: _settings(stage, request) for stage in stages}
    if having := [stage for stage in stages if override in found[stage].groups or is_at(key, found[stage].keys)]:
        return having
    if having := [stage for stage in stages if understanding(key, found[stage].keys, found[stage].engine)]:
        return having
    # leave additions, and keys that a stage refuses with its own message, to each stage
    if override.startswith("+") or key.split(".")[-1] == TRUST or any(one.meaning(key) for one in dialects()):
        return stages
    known = list(dict.fromkeys(one for stage in stages for one in found[stage].keys))
    what = f"{COMMAND_LINE}: no stage has a setting '{key}'"
    raise UserError(what, did_you_mean(key, known, "see --dry-run for all keys"))


def _settings(stage: str, request: Request) -> _Settings:
    directory = stage_directory(stage) / "config"
    folders = [find_config(directory, config_of(request, stage)).parent, directory, *shared_groups()]
    said = [own for text in request.overrides if (own := for_one_stage(text, stage))]
    groups = [text for text in said if is_group(text, folders)]
    chosen = tuple(text for text in said if text in groups or override_key(text) == "run.family")
    tree = composed(stage, replace(request, overrides=chosen)).tree
    return _Settings(groups, list(leaf_keys(tree)), engine_of(tree))
