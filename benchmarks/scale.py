"""Measure commands in a large store, over many files, and over a long training; results are kept in scale.md.

uv run python benchmarks/scale.py                          # 10,000 artifacts, 10,000 files, 1,000,000 rows
uv run python benchmarks/scale.py --artifacts 1000 --files 1000 --rows 10000
uv run python benchmarks/scale.py --rehearse               # a few of each, and no record

CPU seconds of the whole command, including imports, which are compiled before. The data is made in a folder that is
removed at the end. Each search is also done in a store of one artifact: the difference is the cost of the store's size.
"""

import argparse
import json
import math
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from tiny_run import processor

from nemotron_shared.artifacts.manifest import MANIFEST, Producer
from nemotron_shared.artifacts.store import Store

COMPILED = Path(tempfile.gettempdir(), f"scale-compiled-{os.getuid()}")
RECORDS = Path(__file__).with_name("scale.md")
PRODUCER = Producer("sft", "train", "0", "0", "c" * 64, "d" * 64, None, "python -m stages.sft.train -c tiny", {})
FIND = """
import sys
from pathlib import Path
from nemotron_shared.artifacts.store import Store
found = Store(Path(sys.argv[1])).find_by_fingerprint(sys.argv[2], sys.argv[3])
assert (found is None) == (sys.argv[4] == "none"), found
"""


class Figure(NamedTuple):
    """A measured operation, and its CPU seconds."""

    what: str
    seconds: float


def main() -> None:
    """Measure, print and record."""
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("--artifacts", type=int, default=10_000)
    words.add_argument("--files", type=int, default=10_000)
    words.add_argument("--rows", type=int, default=1_000_000)
    words.add_argument("--only", choices=("artifacts", "files", "rows"))
    words.add_argument("--rehearse", action="store_true", help="a few of each, to see that it runs; not recorded")
    asked = words.parse_args()
    if asked.rehearse:
        asked.artifacts, asked.files, asked.rows = 4, 2, 20
    figures: list[Figure] = []
    measures = {"artifacts": artifacts, "files": files, "rows": rows}
    for name, measure in measures.items():
        if asked.only in (None, name):
            with tempfile.TemporaryDirectory(prefix="scale-") as folder:
                figures += measure(Path(folder), getattr(asked, name))
    if asked.rehearse:
        print(section(figures))
    elif asked.only is None:
        with RECORDS.open("a", encoding="utf-8") as file:
            file.write(section(figures))


def artifacts(folder: Path, count: int) -> list[Figure]:
    """List and search stores of `count` artifacts: a hundred versions of each name, one name, one version each."""
    figures = []
    small, name = folder / "small", "hf-org--0"
    fill(small, 1, 1)
    searches(small, name, 1, "to compile what is imported, 1 artifact")
    figures += searches(small, name, 1, "1 artifact")
    for names, shape in ((max(1, count // 100), "100 versions of each name"), (1, "one name"), (count, "many names")):
        home = folder / shape.replace(" ", "-")
        fill(home, names, count // names)
        where = f"{count:,} artifacts, {shape}"
        figures.append(told(f"{where}: list, no index", nemotron(home, "artifacts")))
        figures += searches(home, name, count // names, where)
    return figures


def searches(home: Path, name: str, last: int, where: str) -> list[Figure]:
    """List, and look up by name, version and fingerprint, an existing and a missing artifact."""
    figures = []
    for what, words in (("list", ()), (":latest", ("path", name)), (f":v{last}", ("path", f"{name}:v{last}"))):
        figures.append(told(f"{where}: {what}", nemotron(home, "artifacts", *words)))
    for fingerprint, outcome in (("1", "found"), ("x", "none")):
        command = [sys.executable, "-c", FIND, str(home), name, fingerprint, outcome]
        figures.append(told(f"{where}: by fingerprint, {outcome}", cpu_seconds(command)))
    return figures


def fill(home: Path, names: int, versions: int) -> None:
    """Make a store of artifacts with a manifest and one small file each."""
    store = Store(home)
    made = home / "one"
    made.mkdir(parents=True)
    (made / "config.json").write_text("{}")
    first = store.publish(made, name="hf-org--0", type="ModelArtifact", fingerprint="1", producer=PRODUCER).manifest
    for number in range(names):
        for version in range(1, versions + 1):
            place = store.root / f"hf-org--{number}" / f"v{version}"
            place.mkdir(parents=True, exist_ok=True)
            one = replace(first, name=f"hf-org--{number}", version=version, fingerprint=str(version))
            (place / "config.json").write_text("{}")
            (place / MANIFEST).write_bytes(one.to_bytes())
    time.sleep(0.2)  # files written a moment ago are not cached


def files(folder: Path, count: int) -> list[Figure]:
    """Plan the preparation of a folder of `count` files, of a blend of as many data sets, and of no file."""
    figures = []
    for stage, row in (
        ("pretrain", {"text": "Once upon a time there was a number."}),
        ("sft", {"messages": [{"role": "user", "content": "2+2?"}, {"role": "assistant", "content": "4"}]}),
    ):
        data = folder / stage
        for number in range(count):
            place = data / f"{number // 1000:03d}" / f"{number:06d}.jsonl"
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(json.dumps(row) + "\n")
        sets = [{"name": path.stem, "path": str(path)} for path in sorted(data.rglob("*.jsonl"))]
        blend = folder / f"{stage}.json"
        blend.write_text(json.dumps({"datasets": sets}, indent=1))
        plans = {f"folder of {count:,} files": data, f"blend of {count:,} files": blend, "no files": "synthetic"}
        for what, source in [("to compile what is imported", "synthetic"), *plans.items()]:
            words = ["super3", "data", "prep", stage, "-c", "tiny", f"data_prep.source={source}", "--dry-run"]
            figures.append(told(f"plan {stage}, {what}", nemotron(folder / "home", *words)))
        del figures[-len(plans) - 1]
    return figures


def rows(folder: Path, count: int) -> list[Figure]:
    """The report over a training of `count` steps."""
    home = folder / "home"
    made = home / "one"
    made.mkdir(parents=True)
    with (made / "metrics.jsonl").open("w") as file:
        for step in range(1, count + 1):
            loss = 10 * step**-0.3 + 0.1 * math.sin(step)
            entry = {"step": step, "loss": loss, "grad_norm": 1 + 0.5 * math.cos(step), "lr": 1e-3 / step**0.5}
            entry |= {"tokens": step * 4096, "tokens_per_second": 5000.0 + step % 7, "seconds": step * 0.8}
            file.write(json.dumps(entry | ({"valid_loss": loss} if step % 1000 == 0 else {})) + "\n")
    (made / "config.json").write_text("{}")
    Store(home).publish(
        made, name="super3-pretrain-model", type="ModelArtifact", fingerprint="f" * 64, producer=PRODUCER
    )
    command = ["report", "--out", str(folder / "report.html")]
    nemotron(home, *command)  # to compile the imports
    return [told(f"report over {count:,} rows", nemotron(home, *command))]


def nemotron(home: Path, *words: str) -> float:
    """CPU seconds of a command that must succeed."""
    return cpu_seconds([sys.executable, "-m", "nemotron_app.main", *words], NEMOTRON_HOME=str(home))


def cpu_seconds(command: Sequence[str], **environment: str) -> float:
    """CPU seconds of a program and all its children."""
    compiled = {"PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": str(COMPILED)}
    with tempfile.TemporaryFile() as said:
        child = subprocess.Popen(command, env=os.environ | compiled | environment, stdout=said, stderr=said)
        _, status, used = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        if child.returncode:
            said.seek(0)
            sys.exit(f"{' '.join(command)}\n{said.read().decode()[-2000:]}")
    return used.ru_utime + used.ru_stime


def told(what: str, seconds: float) -> Figure:
    """A figure, printed as soon as it is known."""
    print(f"{seconds:7.2f} s  {what}", flush=True)
    return Figure(what, seconds)


def section(figures: Sequence[Figure]) -> str:
    """Section to append to the file."""
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True).stdout
    heading = f"## {time.strftime('%Y-%m-%d')}, {commit.strip()}"
    where = f"{processor()}, {os.cpu_count()} cores, Python {platform.python_version()}. CPU seconds of whole commands."
    lines = [f"| {one.what} | {one.seconds:.2f} |" for one in figures]
    return "\n".join([heading, "", where, "", "| command | CPU s |", "|---|--:|", *lines, "", ""])


if __name__ == "__main__":
    main()
