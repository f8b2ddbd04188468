"""Compare our work with that of other programs, side by side on one CPU thread, and print a table.

    uv run python benchmarks/against.py                    # every section
    uv run python benchmarks/against.py --only answers --rounds 7 --compiled

Each program runs in a process of its own, which keeps its model, and the two work in turns: ours, the peer's, ours and
so on. Time is CPU time, so that other programs on the machine have little influence, and a ratio is the median of the
ratios within a round. Peers are the versions of `uv.lock`, each with the best settings that we found, which the table
names. A comparison that we lose is printed, too.

Section `answers`: tokens per CPU second, prompts included, of the batch behind `chat`, `generate` and `serve`, against
`model.generate` of transformers with its dynamic and its static cache, and with `--compiled` also with a step by
torch.compile, whose compile time counts. Weights are random. Both answer the same prompts, greedily and at
temperature 1, and the table says whether the greedy answers are the same.
"""

import os

os.environ["OMP_NUM_THREADS"] = "1"  # before torch is imported

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

PROMPT, NEW = 64, 256
ROWS = (1, 8, 32)
PEERS = ("dynamic", "static")
SIZES = {"vocab_size": 8192, "hidden_size": 256, "intermediate_size": 688, "max_position_embeddings": 2048}
MODELS: dict[str, dict[str, Any]] = {
    "llama": {
        "model_type": "llama", **SIZES, "num_hidden_layers": 8, "num_attention_heads": 8, "num_key_value_heads": 8,
        "tie_word_embeddings": True,
    },
    "nemotron_h": {
        "model_type": "nemotron_h", **SIZES, "hybrid_override_pattern": "MEM*EMEM*E", "num_attention_heads": 8,
        "num_key_value_heads": 2, "head_dim": 32, "mamba_num_heads": 8, "mamba_head_dim": 64, "n_groups": 2,
        "ssm_state_size": 64, "conv_kernel": 4, "chunk_size": 64, "n_routed_experts": 8, "num_experts_per_tok": 2,
        "moe_intermediate_size": 256, "moe_shared_expert_intermediate_size": 256,
    },
}  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", choices=SECTIONS, action="append", help="this section; may be repeated")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--new", type=int, default=NEW, help="tokens of an answer")
    parser.add_argument("--compiled", action="store_true", help="also against torch.compile; needs a C++ compiler")
    parser.add_argument("--json", type=Path, metavar="FILE", help="the figures of each round")
    parser.add_argument("--rehearse", action="store_true", help="very little of everything, for the tests")
    parser.add_argument("--worker", nargs=2, metavar=("PROGRAM", "FOLDER"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        return work(*options.worker)
    found = {name: SECTIONS[name](options) for name in options.only or SECTIONS}
    if options.json:
        options.json.write_text(json.dumps(found, indent=1), encoding="utf-8")
    return 0


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
        for name in MODELS:
            save(name, folder := Path(work) / name, tiny=options.rehearse)
            with_ours, with_theirs = Worker("ours", folder), Worker("transformers", folder)
            for sampled in (False, True):
                for prompt, new, rows in shapes:
                    asked = {"rows": rows, "prompt": prompt, "new": new, "sampled": sampled}
                    line = compared(with_ours, with_theirs, peers, asked, rounds)
                    lines.append({"model": name, **asked, **line})
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
    """A process with a model, which answers as it is asked."""

    def __init__(self, program: str, folder: Path) -> None:
        command = [sys.executable, __file__, "--worker", program, str(folder)]
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


def save(name: str, folder: Path, *, tiny: bool) -> None:
    """A model with random weights."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    given = MODELS[name] | ({"vocab_size": 64, "hidden_size": 32, "intermediate_size": 32} if tiny else {})
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(AutoConfig.for_model(**given)).save_pretrained(folder)


def work(program: str, folder: str) -> int:
    """Answer the lines of standard input."""
    import torch
    from transformers.utils import logging

    torch.set_num_threads(1)
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    answer = ours(folder) if program == "ours" else theirs(folder)
    for line in sys.stdin:
        asked = json.loads(line)
        random = torch.Generator().manual_seed(asked["seed"])
        prompts = torch.randint(3, 64, (asked["rows"], asked["prompt"]), generator=random)
        torch.manual_seed(asked["seed"])
        began = time.process_time()
        ids = answer(prompts, asked)
        print(json.dumps({"ids": ids, "seconds": time.process_time() - began}), flush=True)
    return 0


Answer = Callable[[Any, dict[str, Any]], list[list[int]]]


def ours(folder: str) -> Answer:
    """Requests to the batch that `chat`, `generate` and `serve` ask."""
    from nemotron_engines.modeling.build import ONLY_MADE, load_model
    from nemotron_serving.batch import Batch
    from nemotron_serving.sampling import Sampling

    batch = Batch(load_model(Path(folder), ONLY_MADE).eval(), set(), max(ROWS)).__enter__()

    def answer(prompts: Any, asked: dict[str, Any]) -> list[list[int]]:
        sampling = [Sampling(asked["new"], float(asked["sampled"]), seed=row) for row in range(asked["rows"])]
        begun = [batch.generate(*both) for both in zip(prompts.tolist(), sampling, strict=True)]
        return [[token.id for token in one] for one in begun]

    return answer


def theirs(folder: str) -> Answer:
    """transformers alone."""
    import torch
    from transformers import AutoModelForCausalLM

    model: Any = AutoModelForCausalLM.from_pretrained(folder).eval()
    model.generation_config.eos_token_id = None  # every answer has the same length
    plain = model.forward

    def answer(prompts: Any, asked: dict[str, Any]) -> list[list[int]]:
        drawn = {"do_sample": True, "top_k": 0} if asked["sampled"] else {"do_sample": False}
        cache = {} if asked["cache"] == "dynamic" else {"cache_implementation": "static"}
        if asked["cache"] == "compiled":
            torch.compiler.reset()
            model.forward = torch.compile(plain, dynamic=False)
        with torch.inference_mode():
            made = model.generate(
                prompts, attention_mask=torch.ones_like(prompts), max_new_tokens=asked["new"], pad_token_id=0,
                **drawn, **cache,
            )  # fmt: skip
        model.forward = plain
        return made[:, asked["prompt"] :].tolist()

    return answer


SECTIONS: dict[str, Callable[[argparse.Namespace], list[dict[str, Any]]]] = {"answers": answers}

if __name__ == "__main__":
    sys.exit(main())
