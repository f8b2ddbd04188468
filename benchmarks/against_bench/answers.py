"""Answers of the batch behind `chat`, `generate` and `serve`, and of `model.generate` of transformers.

Tokens per CPU second, prompts included, with transformers' dynamic and its static cache. With `--compiled` also with a
step by torch.compile, whose compile time counts. Weights are random. Both answer the same prompts, greedily and at
temperature 1, and the table says whether the greedy answers are the same.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from against_bench.models import save_model

PROMPT = 64
"""Tokens of a prompt."""
ROWS = (1, 8, 32)
PEERS = ("dynamic", "static")
KINDS = ("llama", "nemotron_h")
PROGRAM = Path(__file__).resolve().parent / "programs" / "answer.py"


def answers(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Measure and print the section."""
    peers = [*PEERS, "compiled"] if options.compiled else [*PEERS]
    shapes = [(PROMPT, options.new, rows) for rows in ROWS]
    rounds = options.rounds
    if options.rehearse:
        shapes, rounds = [(5, 3, 2)], 1  # a prompt, an answer and rows of this size
    lines: list[dict[str, Any]] = []
    print(f"| model | choice | rows | ours | {' | '.join(f'generate, {peer}' for peer in peers)} | ours to the best |")
    print("|---|---|--:|--:|" + "--:|" * (len(peers) + 1))
    with tempfile.TemporaryDirectory() as work:
        with_ours, with_theirs = Worker("ours"), Worker("transformers")
        for name in KINDS:
            save_model(name, folder := Path(work) / name, tiny=options.rehearse)
            for sampled in (False, True):
                for prompt, new, rows in shapes:
                    asked = {"model": str(folder), "rows": rows, "prompt": prompt, "new": new, "sampled": sampled}
                    line = compared(with_ours, with_theirs, peers, asked, rounds)
                    lines.append(asked | {"model": name, **line})
                    print(row_of(lines[-1], peers), flush=True)
        with_ours.close(), with_theirs.close()
    return lines


def compared(ours: "Worker", theirs: "Worker", peers: list[str], asked: dict[str, Any], rounds: int) -> dict[str, Any]:
    """Tokens per CPU second of each round; a short round that is not counted warms both up."""
    rates: dict[str, list[float]] = {peer: [] for peer in ("ours", *peers)}
    tokens: dict[str, Any] = {}
    for number in range(rounds + 1):
        for peer in rates:
            program = ours if peer == "ours" else theirs
            if not number and peer == "compiled":
                continue  # its step is made anew for each round, because its time counts
            found = program.ask(asked | {"cache": peer, "seed": number} | ({} if number else {"new": 2}))
            tokens[peer] = found["ids"]
            if number:
                rates[peer].append(asked["rows"] * asked["new"] / found["seconds"])
    against = [peer for peer in peers if peer != "compiled"]
    found = {"rates": rates, "ratio": ratio(rates, against), "same": tokens["ours"] == tokens[against[0]]}
    return found | ({"compiled_ratio": ratio(rates, ["compiled"])} if "compiled" in peers else {})


def ratio(rates: dict[str, list[float]], peers: list[str]) -> float:
    """Median over the rounds of ours to the best of these peers."""
    rounds = zip(rates["ours"], *(rates[peer] for peer in peers), strict=True)
    return statistics.median(one[0] / max(one[1:]) for one in rounds)


def row_of(line: dict[str, Any], peers: list[str]) -> str:
    """The line of the table."""
    medians = [f"{statistics.median(line['rates'][peer]):,.0f}" for peer in ("ours", *peers)]
    choice = "sampled" if line["sampled"] else "greedy, same answers" if line["same"] else "greedy, other answers"
    return f"| {line['model']} | {choice} | {line['rows']} | {' | '.join(medians)} | {line['ratio']:.2f} |"


class Worker:
    """A process that answers requests, and keeps the models that they name."""

    def __init__(self, program: str) -> None:
        command = [sys.executable, str(PROGRAM), program]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, what: dict[str, Any]) -> dict[str, Any]:
        """The answer's ids and its CPU seconds."""
        assert self._process.stdin and self._process.stdout
        print(json.dumps(what), file=self._process.stdin, flush=True)
        return json.loads(self._process.stdout.readline())

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin and self._process.stdout
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()
