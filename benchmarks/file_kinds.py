"""Run `nemotron finetune` on twelve kinds of files: rows kept, time, and how much the model knows afterwards.

    python benchmarks/file_kinds.py [--seed 11] [--facts 40] [--only qa.csv,facts.txt] [--work FOLDER]
    python benchmarks/file_kinds.py --write                           # and put the table into docs/finetune.md
    python benchmarks/file_kinds.py --rehearse --only qa.csv          # two steps on eight facts

Each file has the same invented facts. The tiny model is pretrained once in the folder, fine-tuned on each file with the
settings that finetune chooses, and asked every question; a fact counts if the answer contains it verbatim.
"""

import argparse
import csv
import gzip
import io
import json
import os
import platform
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from records import code_to_record
from tiny_run import processor

PLACES = ("Velt", "Orim", "Saku", "Brannoc", "Tilde", "Mossa", "Quill", "Ferron", "Ulva", "Pressel")
THINGS = ("river", "mountain", "bakery", "library", "museum", "harbour", "orchard", "tower")
GOODS = ("copper", "violet", "glass", "honey", "silk", "paper", "amber", "salt", "cedar", "linen")
Fact = tuple[str, str]


def facts(count: int, seed: int) -> list[Fact]:
    """Questions with their answers, which cannot be guessed."""
    rng = random.Random(seed)
    asked = rng.sample([(place, thing) for place in PLACES for thing in THINGS], count)
    return [(f"What is the {thing} of {place} known for?",
             f"It is known for {rng.choice(GOODS)} and {rng.choice(GOODS)}.") for place, thing in asked]  # fmt: skip


def turns(fact: Fact, wrapped: Callable[[str], Any] = str) -> dict[str, Any]:
    roles = zip(("user", "assistant"), fact, strict=True)
    return {"messages": [{"role": role, "content": wrapped(text)} for role, text in roles]}


def lines(rows: Iterable[Any]) -> bytes:
    return "".join(f"{json.dumps(row)}\n" for row in rows).encode()


def table(known: list[Fact], names: Fact, delimiter: str) -> bytes:
    with io.StringIO(newline="") as text:
        csv.writer(text, delimiter=delimiter).writerows([names, *known])
        return text.getvalue().encode()


def parquet(rows: list[dict[str, Any]]) -> bytes:
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.Table.from_pylist(rows), held := io.BytesIO())
    return held.getvalue()


def sharegpt(fact: Fact) -> dict[str, Any]:
    said = zip(("human", "gpt"), fact, strict=True)
    return {"conversations": [{"from": who, "value": text} for who, text in said]}


def pairs(known: list[Fact], *names: str) -> list[dict[str, str]]:
    return [dict(zip(names, fact, strict=True)) for fact in known]


KINDS: dict[str, tuple[str, Callable[[list[Fact]], bytes]]] = {
    "messages.jsonl": ("OpenAI messages", lambda known: lines(map(turns, known))),
    "parts.jsonl": ("messages with content parts",
                    lambda known: lines(turns(one, lambda text: [{"type": "text", "text": text}]) for one in known)),
    "messages.jsonl.gz": ("messages, compressed", lambda known: gzip.compress(lines(map(turns, known)))),
    "messages.parquet": ("messages in Parquet", lambda known: parquet([turns(one) for one in known])),
    "sharegpt.json": ("a JSON list, ShareGPT", lambda known: json.dumps([sharegpt(one) for one in known]).encode()),
    "alpaca.json": ("a JSON list, Alpaca",
                    lambda known: json.dumps([row | {"input": ""} for row in pairs(known, "instruction", "output")],
                                             indent=1).encode()),
    "completion.jsonl": ("prompt and completion", lambda known: lines(pairs(known, "prompt", "completion"))),
    "response.jsonl": ("prompt and response", lambda known: lines(pairs(known, "prompt", "response"))),
    "qa.csv": ("CSV", lambda known: table(known, ("Question", "Answer"), ",")),
    "excel.csv": ("CSV as a spreadsheet saves it: semicolons, a byte order mark",
                  lambda known: b"\xef\xbb\xbf" + table(known, ("prompt", "response"), ";")),
    "qa.tsv": ("tabs between columns", lambda known: table(known, ("question", "answer"), "\t")),
    "facts.txt": ("plain text, a fact in each paragraph", lambda known: "\n\n".join(map(" ".join, known)).encode()),
}  # fmt: skip
PAGE = Path(__file__).resolve().parents[1] / "docs" / "finetune.md"
BEGIN, END = "<!-- file kinds -->\n", "<!-- end of file kinds -->"
HEADING = "| file | what it holds | rows kept | facts known | seconds |\n|---|---|--:|--:|--:|"
REHEARSAL = ["train.train_iters=2", "checkpoint.save_interval=1", "train.eval_interval=1"]
TEXT = ".txt"
"""Models trained on text files get the question as raw text to continue."""


def main() -> int:
    options = arguments()
    code = code_to_record() if options.write else ""
    work = (options.work or Path(tempfile.mkdtemp(prefix="file-kinds-"))).absolute()
    work.mkdir(parents=True, exist_ok=True)
    known = facts(options.facts, options.seed)
    (work / "asked.jsonl").write_bytes(lines({"question": asked} for asked, _ in known))
    few = REHEARSAL if options.rehearse else []
    nemotron(work, "super3", "pretrain", "-c", "tiny", "--json", *few)
    print(f"{len(known)} facts, seed {options.seed}, in {work}", file=sys.stderr)
    print(HEADING)
    rows: list[str] = []
    for name in options.only:
        about, make = KINDS[name]
        (work / name).write_bytes(make(known))
        began = time.monotonic()
        made = json.loads(nemotron(work, "finetune", "super3-pretrain-model:v1", name, "--again", "--json", *few))
        how = ["--raw"] if name.endswith(TEXT) else []
        how += ["--max-tokens=16"] if options.rehearse else []  # a model of two steps never ends an answer
        nemotron(work, "generate", made["model"], "asked.jsonl", "--out", f"{name}.said", "--force", *how)
        seconds = time.monotonic() - began
        said = [json.loads(line)["response"] for line in (work / f"{name}.said").read_text().splitlines()]
        right = sum(answer in text for text, (_, answer) in zip(said, known, strict=True))
        kept = json.loads(nemotron(work, "artifacts", "show", made["data"], "--json"))["manifest"]["metadata"]["splits"]
        count = sum(split.get("conversations", split.get("documents", 0)) for split in kept.values())
        rows.append(f"| `{name}` | {about} | {count} | {right} of {len(known)} | {seconds:.0f} |")
        print(rows[-1], flush=True)
    if options.write:
        put_into_page(BEGIN, END, HEADING, rows, code, "python benchmarks/file_kinds.py --write")
    return 0


def put_into_page(begin: str, end: str, heading: str, rows: list[str], code: str, command: str) -> None:
    """Write a table into the page, with the code, the day and the machine."""
    machine = f"{processor()}, {os.cpu_count()} cores, Python {platform.python_version()}"
    about = f"Code {code}, {time.strftime('%Y-%m-%d')}, {machine}; made by `{command}`."
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(begin)
    text = "\n".join([about, "", heading, *rows])
    PAGE.write_text(f"{before}{begin}{text}\n{end}{rest.partition(end)[2]}", encoding="utf-8")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=11)
    parser.add_argument("--facts", type=int, default=40, help=f"at most {len(PLACES) * len(THINGS)} (default: 40)")
    parser.add_argument("--only", type=kind_names, default=[*KINDS], help="kinds, with commas between; default: all")
    parser.add_argument("--work", type=Path, help="keep models and files here (default: a new temporary folder)")
    once = parser.add_mutually_exclusive_group()
    once.add_argument("--write", action="store_true", help="put the table into docs/finetune.md; of all kinds")
    once.add_argument("--rehearse", action="store_true", help="two steps on eight facts, to see that it runs")
    options = parser.parse_args()
    if options.write and options.only != [*KINDS]:
        parser.error("--write is for the table of all kinds: leave out --only")
    options.facts = 8 if options.rehearse else options.facts
    return options


def kind_names(text: str) -> list[str]:
    if unknown := [name for name in text.split(",") if name not in KINDS]:
        raise argparse.ArgumentTypeError(f"no kind {unknown[0]}; there are: {', '.join(KINDS)}")
    return text.split(",")


def nemotron(work: Path, *words: str) -> bytes:
    """JSON output of a command; its log stays in the folder."""
    command = [sys.executable, "-m", "nemotron_app.main", *words]
    with (work / "log").open("ab") as log:
        done = subprocess.run([*command, "--home", str(work / "home")] if words[0] != "super3" else
                              [*command, f"run.home={work / 'home'}"],
                              cwd=work, stdout=subprocess.PIPE, stderr=log, check=False)  # fmt: skip
    if done.returncode:
        sys.exit(f"{' '.join(words)}: exit code {done.returncode}; see {work / 'log'}")
    return done.stdout


if __name__ == "__main__":
    sys.exit(main())
