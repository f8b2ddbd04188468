"""Measure speed and memory of our data preparation, next to every installed peer.

    python benchmarks/data_prep.py --peer-python PEERS/bin/python --record [--megatron ../Megatron-LM] [--only sft]
    python benchmarks/data_prep.py --rehearse        # a minute, figures are meaningless

Peers get a separate environment, since datatrove and megatron-core do not share our lock:

    uv venv --python 3.11 PEERS && uv pip install --python PEERS/bin/python -r benchmarks/prep_bench/peers.txt

Makes a corpus of about 200 MB from ordinary files on this machine and two tokenizers, and keeps both for the next
time (`--work`). Then every program runs once per round. A run is measured from the start of the command to its end:
wall time, CPU-seconds and resident memory of the whole process tree. The tables show medians over the rounds; `ratio`
is to the first row. Speeds are shown only if our bytes, ids and masks equal those of the peers, or differ exactly where
a text contains the name of a control token, which is text for us and the token for them; the output has the number of
such texts. `--record` keeps the tables in data_prep.md.

Linux only: the process tree is read from /proc.
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from prep_bench import packing, pretrain, rl, sft
from prep_bench.corpus import build_corpus
from prep_bench.process_tree import CommandFailed
from prep_bench.settings import REPOSITORY, Bench
from prep_bench.table import Section, json_of, machine, text_of
from prep_bench.vocabularies import VOCABULARIES, train
from records import add, code_to_record

SECTIONS = ("pretrain", "memory", "sft", "rl", "packing")
PAGE = """# Data preparation

Recorded measurements, the newest last; `python benchmarks/data_prep.py --record` adds one, and says at its beginning
how. `python benchmarks/data_prep.py --rehearse` only shows that everything runs and is compared.
"""
REHEARSAL = {"megabytes": 1, "rounds": 1, "slow_rounds": 1, "chats": 60, "rl_megabytes": 10}
REHEARSED = [str(REPOSITORY / name) for name in ("docs", "shared", "stages")]
"""Folders with text that contains names of control tokens."""


def main() -> int:
    options = arguments()
    code = code_to_record() if options.record else ""
    if not Path("/proc/self/stat").is_file():
        sys.exit("this benchmark reads /proc, which this system does not have: run it on Linux")
    bench, about = prepared(options)
    sections: list[Section] = []
    status = 0
    for name in options.only:
        print(f"{name}:", file=sys.stderr)
        try:
            sections += runners(bench, options)[name]()
        except CommandFailed as error:
            print(f"{name}: no speeds, because this went wrong:\n  {error}", file=sys.stderr)
            status = 1
    text = "\n".join([heading(about), *map(text_of, sections)])
    print(text)
    if options.record and not status:
        what = f"{about['corpus']['text_bytes'] / 1e6:.0f} MB of text, {options.rounds} rounds"
        add("data_prep.md", PAGE, what, code, ["```text", text, "```"])
    if options.json:
        options.json.write_text(json.dumps({**about, "sections": json_of(sections)}, indent=2, default=str))
    return status


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", type=section_names, default=SECTIONS, help=f"of {','.join(SECTIONS)}; default: all")
    parser.add_argument("--megabytes", type=int, default=205, help="text in the corpus (default: 205)")
    parser.add_argument("--add", action="append", default=[], metavar="FOLDER", help="another source of the corpus")
    parser.add_argument("--megatron", type=Path, help="a checkout of Megatron-LM, to run its tools")
    parser.add_argument("--peer-python", default=sys.executable, help="interpreter of the peers (default: this one)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--slow-rounds", type=int, default=1, help="of a peer that takes over a minute (default: 1)")
    parser.add_argument("--workers", type=int, default=2, help="of every program that has workers (default: 2)")
    parser.add_argument("--ray", action="store_true", help="also run ours on Ray")
    parser.add_argument("--chats", type=int, default=20_000, help="of the sft section (default: 20000)")
    parser.add_argument("--rl-megabytes", type=int, default=2000, help="of the rl section (default: 2000)")
    parser.add_argument("--work", type=Path, default=Path(tempfile.gettempdir(), "nemotron-data-prep-benchmark"))
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything to a file as well")
    once = parser.add_mutually_exclusive_group()
    once.add_argument("--record", action="store_true", help="add the tables to benchmarks/data_prep.md")
    once.add_argument("--rehearse", action="store_true", help="everything on very little, to see that it runs")
    options = parser.parse_args()
    if options.rehearse:
        vars(options).update(REHEARSAL)
    return options


def section_names(text: str) -> list[str]:
    """Sections in `--only`."""
    names = text.split(",")
    unknown = [name for name in names if name not in SECTIONS]
    if unknown:
        raise argparse.ArgumentTypeError(f"unknown: {', '.join(unknown)}; there are {', '.join(SECTIONS)}")
    return names


def prepared(options: argparse.Namespace) -> tuple[Bench, dict[str, Any]]:
    """Corpus and tokenizers, made or found, and a description of this measurement."""
    work = options.work.resolve()
    folder = work / "corpus"
    print("corpus and tokenizers ...", file=sys.stderr)
    added = [str(Path(extra).resolve()) for extra in options.add]
    corpus = build_corpus(
        folder, options.megabytes, [*added, *REHEARSED] if options.rehearse else added, options.rehearse
    )
    if corpus["text_bytes"] < options.megabytes * 1_000_000:
        print(f"this machine has {corpus['text_bytes'] / 1e6:.0f} MB of such text; more with --add", file=sys.stderr)
    tokenizers = {
        v.name: train(v, folder / "corpus.jsonl", corpus["text_bytes"], work / v.name) for v in VOCABULARIES
    }  # fmt: skip
    megatron = options.megatron.resolve() if options.megatron else None
    bench = Bench(
        work, folder, corpus["documents"], corpus["text_bytes"], tokenizers, options.peer_python, megatron,
        options.rounds, options.slow_rounds, options.workers, options.ray, options.rehearse,
    )  # fmt: skip
    return bench, {
        "machine": machine(options.peer_python),
        "corpus": corpus,
        "rounds": options.rounds,
        "workers": options.workers,
    }


def runners(bench: Bench, options: argparse.Namespace) -> dict[str, Callable[[], list[Section]]]:
    return {
        "pretrain": lambda: pretrain.run(bench),
        "memory": lambda: pretrain.run_memory(bench),
        "sft": lambda: sft.run(bench, options.chats),
        "packing": lambda: packing.run(bench),
        "rl": lambda: rl.run(bench, options.rl_megabytes),
    }


def heading(about: dict[str, Any]) -> str:
    here, corpus = about["machine"], about["corpus"]
    packages, peers = (
        ", ".join(f"{name} {number}" for name, number in here[key].items()) for key in ("packages", "peers' packages")
    )
    return (
        f"code {here['code']}, {here['date']}\n"
        f"{here['cpu']}, {here['cores']} cores, {here['memory']}, load before {here['load']}\n"
        f"Python {here['python']}, {packages}\n"
        f"{f'peers: {peers}' if peers else 'peers: the same packages'}\n"
        f"corpus: {corpus['documents']:,} documents, {corpus['text_bytes'] / 1e6:.1f} MB of text\n"
        "n: runs; MB of resident memory at the worst moment, all processes and the largest; "
        "work: by the program's own clock"
    )


if __name__ == "__main__":
    sys.exit(main())
