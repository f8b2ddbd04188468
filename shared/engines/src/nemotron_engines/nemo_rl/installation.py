"""NeMo-RL on this machine: its checkout and version, how its programs run, and which config keys it has.

A training is one driver. It starts Ray, or joins a running cluster, and Ray starts everything else; a second driver
would claim all GPUs again.

    faults(schema, {"grpo": {"num_promts_per_step": 3}})
    # [problem("NeMo-RL has no such key", "did you mean ...", key="grpo.num_promts_per_step")]

NeMo-RL itself accepts any unknown key, because its sections are open, so it ignores typing errors silently.
"""

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypedDict

from nemotron_engines.nemo_rl.settings import NeMoRLEngine
from nemotron_engines.nemo_rl.versions import (
    REPOSITORY,
    VERSIONS,
    commit_of,
    digest_of,
    load_base,
    load_bases,
    version_of,
)
from nemotron_engines.overrides import ROOT, at, has
from nemotron_shared.config.validate import refusal
from nemotron_shared.machine.library_output import program_output
from nemotron_shared.system.errors import Finding, UserError, did_you_mean, problem
from nemotron_shared.system.process import end_group, ending_with_us
from nemotron_shared.system.redaction import redact
from nemotron_shared.tracking.run import Run

IN_CONTAINER = Path("/opt/nemo-rl")
OF_TORCHRUN = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "GROUP_RANK")


@dataclass(frozen=True)
class Installation:
    """A checkout of the right version, its base config, and how to start its programs."""

    checkout: Path
    base: dict[str, Any]
    runner: str

    def command(self, program: Path | str, *arguments: str, extra: str | None = None) -> list[str]:
        """A command line that runs a Python program with NeMo-RL's interpreter."""
        if self.runner == "python":
            return [sys.executable, str(program), *arguments]
        extras = ["--extra", extra] if extra else []
        return ["uv", "run", *extras, "python", str(program), *arguments]

    def environment(self) -> dict[str, str]:
        """Our environment without torchrun's variables; the checkout is importable, for the plans in `examples`."""
        kept = {name: value for name, value in os.environ.items() if name not in OF_TORCHRUN}
        if self.runner == "uv":
            kept.pop("VIRTUAL_ENV", None)
        paths = [str(self.checkout), *filter(None, [kept.get("PYTHONPATH")])]
        return kept | {"PYTHONPATH": os.pathsep.join(paths)}


def find_installation(engine: NeMoRLEngine) -> Installation:
    """The checkout that `engine` needs.

    Raises:
        UserError: it is missing, has a different version, or `uv` is missing.
    """
    checkout = find_checkout(engine)
    # The commit may differ, as in a container with a fix on top; the base config is always compared exactly.
    wanted, commit, package = VERSIONS[engine.version], commit_of(checkout), version_of(checkout)
    if commit != wanted.commit and package != wanted.package:
        what = f"version {package}" + (f", commit {commit[:9]}" if commit else "")
        raise UserError(
            f"{checkout} is {what}, but this recipe is written for NeMo-RL {engine.version} "
            f"(version {wanted.package}, commit {wanted.commit[:9]})",
            how_to_get(engine.version),
        )
    base = load_base(checkout, engine.base)
    if digest_of(base) != load_bases(engine.version)[engine.base].digest:
        raise UserError(
            f"{checkout / engine.base} is not the file of NeMo-RL {engine.version} (changed, or another commit)",
            how_to_get(engine.version),
        )
    if engine.runner == "uv" and shutil.which("uv") is None:
        raise UserError("engine.runner: `uv` not found", "install uv, or set engine.runner=python")
    return Installation(checkout, base, engine.runner)


def find_checkout(engine: NeMoRLEngine) -> Path:
    """`engine.checkout`, the place that `nemo_rl` is imported from, or the container's."""
    if engine.checkout is not None:
        folder = Path(engine.checkout).expanduser().resolve()
        if not (folder / "nemo_rl").is_dir():
            raise UserError(f"engine.checkout: {folder} is not a NeMo-RL checkout", how_to_get(engine.version))
        return folder
    found = importlib.util.find_spec("nemo_rl")
    places = [Path(found.origin).parents[1]] if found and found.origin else []
    for place in (*places, IN_CONTAINER):
        if (place / "examples").is_dir():
            return place
    raise UserError(
        "engine nemo_rl: NeMo-RL not found (the package of that name on PyPI is empty)", how_to_get(engine.version)
    )


def how_to_get(version: str) -> str:
    """Remedy with a version's container and git command."""
    wanted = VERSIONS[version]
    return (
        f"run inside the container {wanted.container}, or:\n"
        f"    git clone --recursive {REPOSITORY} nemo-rl\n"
        f"    git -C nemo-rl checkout --recurse-submodules {wanted.commit}\n"
        "  and then: nemotron engine install nemo_rl --from nemo-rl (or set engine.checkout=nemo-rl)"
    )


PREFLIGHT = Path(__file__).with_name("preflight.py")
LACKS = re.compile(r"ModuleNotFoundError: No module named '([\w.]+)'$")
OF_UV = re.compile(r"^(?:error: |\s*× )", re.MULTILINE)
"""Start of uv's message if it cannot make an environment; the program has not started then."""


def ask(installation: Installation, log: Path, *arguments: str) -> dict[str, Any]:
    """Run `preflight.py` and return its answer.

    Raises:
        UserError: it failed; the message has the last lines of its log.
    """
    answer = run_logged(
        installation, installation.command(PREFLIGHT, *arguments), log, "NeMo-RL refuses this configuration"
    )
    return json.loads(answer.strip().splitlines()[-1])


def run_driver(
    installation: Installation, run: Run, command: Sequence[str], log: Path, watch: Callable[[], None]
) -> None:
    """Run a training to its end, with its output in `log`. `watch` is called about once a minute.

    Raises:
        UserError: it failed. The caller handles stops: on return, `run.stop_requested` may be set.
    """
    with program_output(log) as file:
        process = subprocess.Popen(
            ending_with_us(command, group=True),
            cwd=installation.checkout,
            env=installation.environment(),
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            with run.watched():
                seen = time.monotonic()
                while process.poll() is None and not run.stop_requested:
                    time.sleep(0.5)
                    if time.monotonic() - seen > 60:
                        watch()
                        seen = time.monotonic()
            code = process.poll()
        finally:
            # NeMo-RL does not save on a signal, so there is no point in waiting longer.
            end_group(process)
    if code and not run.stop_requested:
        raise _failure(installation, log.read_text("utf-8"), log, f"NeMo-RL ended with exit code {code}")


def run_logged(installation: Installation, command: Sequence[str], log: Path, failure: str) -> str:
    """Run a program of the checkout and return its output; also written to `log`, and its end shown on failure."""
    done = subprocess.run(
        ending_with_us(command),
        cwd=installation.checkout,
        env=installation.environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    log.write_text(redact(done.stdout + done.stderr), encoding="utf-8")
    if done.returncode:
        raise _failure(installation, redact(done.stderr), log, failure)
    return done.stdout


def _failure(installation: Installation, said: str, log: Path, otherwise: str) -> UserError:
    """The error for a failed program: blames its environment if that is broken, else its input."""
    if found := LACKS.search(said.strip().rpartition("\n")[2]):
        what = f"NeMo-RL's environment lacks the module '{found[1]}'"
    elif installation.runner == "uv" and "Traceback (most recent call last)" not in said and OF_UV.search(said):
        what = "uv could not make NeMo-RL's environment"
    else:
        return UserError(f"{otherwise}:\n{tail(said)}", f"the whole log: {log}")
    remedy = f"install it: nemotron engine install nemo_rl --from {installation.checkout}"
    remedy += " and set engine.runner=python" if installation.runner == "uv" else ""
    return UserError(f"{what}:\n{tail(said)}", f"{remedy}\n  the whole log: {log}")


def tail(text: str) -> str:
    """The last lines of a log, indented."""
    return "\n".join(f"    {line}" for line in text.strip().splitlines()[-12:])


# Which keys NeMo-RL's configuration has: asked of the installed NeMo-RL when a training starts.


NAMES: dict[type, str] = {
    int: "int", float: "float", bool: "bool", str: "str", type(None): "null", dict: "dict", list: "list",
}  # fmt: skip
PASSED_ON = ("_kwargs", "mcore_generation_config")
"""Sections whose keys NeMo-RL passes to other libraries."""


class Node(TypedDict, total=False):
    """A place in the configuration: accepted JSON types ("any": all), and its keys if they are known."""

    types: list[str]
    values: list[Any]
    keys: dict[str, "Node"]


def require_known(
    installation: Installation, engine: NeMoRLEngine, algorithm: str, origins: Mapping[str, str], log: Path
) -> None:
    """Check `engine.overrides` against the keys and types that NeMo-RL declares, or sets in its own configs.

    Raises:
        UserError: an unknown key, or a value of the wrong type.
    """
    if not engine.overrides:
        return
    schema: Node = ask(installation, log, "--keys", algorithm)  # ty: ignore[invalid-assignment]
    checkout, words = installation.checkout, source_words(installation.checkout)
    paths = [path for path, base in load_bases(engine.version).items() if base.algorithm == algorithm]
    others = [load_base(checkout, path) for path in paths if (checkout / path).is_file()]
    for base in (installation.base, *others):
        add_read_keys(schema, base, words)
    for fault in faults(schema, engine.overrides):
        key = str(fault.key)
        if has(installation.base, key):  # nothing in NeMo-RL reads it, although its own file sets it
            if at(installation.base, key) == at(engine.overrides, key):
                continue
            fault = replace(fault, remedy="leave it out: NeMo-RL's own file sets it, but nothing reads it")
        message = f"{fault.message} (NeMo-RL {engine.version})"
        raise refusal(f"{ROOT}.{key}", message, origins, fault.remedy)


def faults(node: Node, values: dict[str, Any], above: str = "") -> Iterator[Finding]:
    """Unknown keys in `values`, and values of the wrong type."""
    known = node.get("keys")
    for name, value in values.items():
        key = f"{above}{name}"
        if known is None:
            return
        if name not in known:
            near = did_you_mean(name, known, f"known keys: {', '.join(known)}")
            yield problem("NeMo-RL has no such key", near, key)
        elif wrong := type_fault(known[name], value):
            yield problem(wrong, key=key)
        elif isinstance(value, dict):
            yield from faults(known[name], value, f"{key}.")


def type_fault(node: Node, value: Any) -> str | None:
    """The problem with a value's type, or None."""
    accepted, name = node["types"], NAMES.get(type(value), "other")
    if isinstance(value, str) and "${" in value:
        return None  # NeMo-RL fills it in from its full config
    if "any" in accepted or name in accepted or (name == "int" and "float" in accepted):
        wanted = node.get("values")
        if wanted is not None and value not in wanted:
            return f"must be one of {', '.join(map(str, wanted))}, not {value!r}"
        return None
    return f"must be {' or '.join(accepted)}, not {name} ({value!r})"


def source_words(checkout: Path) -> set[str]:
    """Every identifier in NeMo-RL's own Python files."""
    files = [*(checkout / "nemo_rl").rglob("*.py"), *(checkout / "examples").rglob("*.py")]
    return {word for file in files for word in re.findall(r"[A-Za-z_]\w*", file.read_text(encoding="utf-8"))}


def add_read_keys(node: Node, values: dict[str, Any], words: set[str]) -> None:
    """Add keys to the schema that a config sets and the source mentions."""
    for name, value in values.items():
        known = node["keys"].get(name)
        if known is None and name in words:
            closed = isinstance(value, dict) and not name.endswith(PASSED_ON)
            known = node["keys"][name] = Node(types=["dict"], keys={}) if closed else Node(types=["any"])
        if known is not None and isinstance(value, dict) and "keys" in known:
            add_read_keys(known, value, words)
