"""Data preparation and other programs on the same files, by data_prep.py next to this one, which has more of them.

Wall time of whole commands, two workers: text to Megatron's .bin and .idx against gigatoken's encoding alone, which
writes nothing, and chats to packed rows against datasets.map with the chat template.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from prep_bench.settings import REPOSITORY

PAIRS = {"pretrain": "gigatoken encode_files", "sft": "datasets.map"}
"""The peer of each section of data_prep.py, by the beginning of its row's name."""


def data(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Measure and print the section."""
    lines: list[dict[str, Any]] = []
    print("| data | ours, s | peer | its s | ours to the peer |\n|---|--:|---|--:|--:|", flush=True)
    for section, peer in PAIRS.items():
        for table in tables(section, options):
            rows = [row for row in table["rows"] if not row["missing"]]
            own = next(row for row in rows if not row["peer"])
            for other in (row for row in rows if row["name"].startswith(peer)):
                lines.append({"data": table["title"], "peer": other["name"],
                              "ours": own["every_wall_s"], "theirs": other["every_wall_s"]})  # fmt: skip
                print(row_of(lines[-1]), flush=True)
    return lines


def tables(section: str, options: argparse.Namespace) -> list[dict[str, Any]]:
    """The tables of a section of data_prep.py."""
    with tempfile.TemporaryDirectory(prefix="against-") as folder:
        file = Path(folder) / "found.json"
        work = ["--work", str(options.work)] if options.work else []
        amount = ["--rehearse"] if options.rehearse else ["--rounds", str(options.rounds)]
        program = str(REPOSITORY / "benchmarks" / "data_prep.py")
        command = [sys.executable, program, "--only", section, *amount, *work, "--json", str(file)]
        subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
        return json.loads(file.read_text(encoding="utf-8"))["sections"]


def row_of(line: dict[str, Any]) -> str:
    """Medians; a slow peer has fewer rounds, so the ratio is one of medians."""
    ours, theirs = statistics.median(line["ours"]), statistics.median(line["theirs"])
    return f"| {line['data']} | {ours:.2f} | {line['peer']} | {theirs:.2f} | {ours / theirs:.2f} |"
