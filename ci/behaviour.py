"""Record the behaviour of all commands at one commit and compare it at another, to check refactorings.

    uv run python3 ci/behaviour.py note before.json       # some ten minutes on two cores
    uv run python3 ci/behaviour.py compare before.json    # at the other commit: exits with 1 and shows what differs

Records the help of every command, the dry run of every config with every engine, the files of the four tiny
preparations, the weights of six training steps of each stage, and the scores of an evaluation. Only the command line
is used, so code can move freely in between. Paths, versions of artifacts and times are left out.
"""

import difflib
import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
STAGES = ("pretrain", "sft", "rl", "eval")
FAMILY = "super3"
SIX_STEPS = {
    "pretrain": ["train.train_iters=6"],
    "sft": ["train.train_iters=6"],
    "rl": ["train.train_iters=6", "grpo.max_new_tokens=16"],
    "eval": [],
}
VARYING = re.compile(r"\d{4}-\d\d-\d\d[T ][\d:.+]+|[0-9a-f]{40}(-dirty)?|\b\d+(\.\d+)? ?(s|ms|GB|MB|GiB|MiB)\b")
OF_A_CLOCK = re.compile(
    r"^\[\S+\] (importing libraries|at work on|asking .*: |read |.*/s\b|.* left$).*\n", re.MULTILINE
)
"""Lines that come when some seconds have passed, or tell a speed."""
OF_A_RUN = {"manifest.json", "config.yaml", "metrics.jsonl", "trainer_state.json", "data_manifest.json"}
SHOWN_LINES = 40
Noted = dict[str, str]


def main(words: list[str]) -> int:
    """Record or compare; returns the exit code."""
    if len(words) != 2 or words[0] not in ("note", "compare"):
        print(__doc__, file=sys.stderr)
        return 2
    verb, file = words[0], Path(words[1])
    with tempfile.TemporaryDirectory(prefix="behaviour-") as folder:
        noted = dict(_everything(Path(folder)))
    if verb == "note":
        file.write_text(json.dumps(noted, indent=1))
        print(f"{file}: {len(noted)} outputs")
        return 0
    return compare(json.loads(file.read_text()), noted)


def compare(before: Noted, after: Noted) -> int:
    """Print differences; returns 1 if there are any."""
    differing = [name for name in sorted(before | after) if before.get(name) != after.get(name)]
    for name in differing:
        lines = (one.get(name, "(not there)").splitlines() for one in (before, after))
        found = list(difflib.unified_diff(*lines, f"before: {name}", f"after: {name}", lineterm="", n=1))
        print("\n".join(found[:SHOWN_LINES]), f"... {len(found)} lines" if len(found) > SHOWN_LINES else "", sep="\n")
    print(f"{len(differing)} of {len(before | after)} outputs differ")
    return int(bool(differing))


def _everything(folder: Path) -> Iterator[tuple[str, str]]:
    """Yield name and text of each output."""
    yield from _helps(folder)
    for stage in STAGES:
        for words in _choices(stage):
            yield " ".join(["dry run", stage, *words]), _run(folder, FAMILY, stage, *words, "--dry-run", "--json")
    store = folder / "store"
    for stage in STAGES:
        said = _run(folder, FAMILY, "data", "prep", stage, "-c", "tiny")
        yield f"data prep {stage}", said
        yield f"files of data prep {stage}", _digests(store / "artifacts" / f"{FAMILY}-{stage}-data" / "v1")
        yield f"{stage} in six steps", _run(folder, FAMILY, stage, "-c", "tiny", *SIX_STEPS[stage])
        if stage != "eval":
            yield f"weights of {stage}", _digests(store / "artifacts" / f"{FAMILY}-{stage}-model" / "v1")


def _helps(folder: Path) -> Iterator[tuple[str, str]]:
    """Help of the main command, and of each command that it lists."""
    top = _run(folder, "--help")
    yield "help", top
    for name in re.findall(r"^  ([a-z]+)(?: +|$)", top, re.MULTILINE):
        yield f"help {name}", _run(folder, name, "--help")
    for stage in STAGES:
        yield f"help {stage}", _run(folder, FAMILY, stage, "--help")


def _choices(stage: str) -> Iterator[list[str]]:
    """Every config of a stage, and the tiny one with every engine."""
    config = ROOT / "stages" / stage / "config"
    for file in sorted(config.glob("*.yaml")):
        yield ["-c", file.stem]
    for file in sorted((config / "engine").glob("*.yaml")):
        yield ["-c", "tiny", f"engine={file.stem}"]


def _run(folder: Path, *words: str) -> str:
    """Output and exit code of a command."""
    environment = os.environ | {"NEMOTRON_HOME": str(folder / "store"), "HF_HUB_OFFLINE": "1", "COLUMNS": "120"}
    program = str(Path(sys.executable).parent / "nemotron")
    done = subprocess.run([program, *words], cwd=folder, env=environment, capture_output=True, text=True, check=False)
    text = f"exit {done.returncode}\n{done.stdout}\n{done.stderr}"
    for path, name in ((folder, "FOLDER"), (ROOT, "ROOT"), (Path.home(), "HOME")):
        text = text.replace(str(path), name)
    return VARYING.sub("VARIES", OF_A_CLOCK.sub("", text))


def _digests(folder: Path) -> str:
    """Digest of each file of a result, except those with the time or the code version."""
    kept = sorted(file for file in folder.rglob("*") if file.is_file() and file.name not in OF_A_RUN)
    lines = (f"{file.relative_to(folder)} {hashlib.sha256(file.read_bytes()).hexdigest()}" for file in kept)
    return "\n".join(lines) or "nothing"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
