"""`nemotron prove sampling`: log-probabilities of sampling and of training are the same bits.

nemotron prove sampling rl                        100,000 tokens that the model samples
nemotron prove sampling ./folder --tokens 5000 --seed 7 --dtype bfloat16
nemotron prove sampling rl --record               and note the result in benchmarks/sampling.md

The model continues random prompts, in batches of random size. Then the log-probability of each token is computed
again in every way that training or another batch could meet it, and compared bit by bit with the one that it was
sampled with. What transformers' own code gives stands beside it.
"""

import time
from dataclasses import asdict, dataclass, field

import click

from nemotron_prove import records
from nemotron_serving.options import Chosen, model_options
from nemotron_shared.runtime.console import clock, doing, say
from nemotron_shared.runtime.progress import heartbeat

HEAD = """# Sampling and training

Made by `nemotron prove sampling rl --record`, the newest last. docs/prove.md says what is compared.
"""
THEIRS = "transformers"
"""What ways of computing begin with that are not ours, and need not agree."""


@dataclass
class Count:
    """What one way of computing them gave."""

    tokens: int = 0
    differing: int = 0
    flips: int = 0
    largest: float = 0.0

    def add(self, sampled: list[float], again: list[float], flips: int) -> None:
        """Compare log-probabilities of the same tokens, in nats; `flips` of them met other experts."""
        self.flips += flips
        apart = [abs(one - other) for one, other in zip(sampled, again, strict=True)]
        self.tokens += len(apart)
        self.differing += sum(one != other for one, other in zip(sampled, again, strict=True))
        self.largest = max(self.largest, *apart, 0.0)


@dataclass
class Proof:
    """Everything that was counted; CPU seconds by what took them."""

    model: str
    dtype: str
    ways: dict[str, Count] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)

    @property
    def holds(self) -> bool:
        """None of ours differs, and something was compared."""
        ours = [count for way, count in self.ways.items() if not way.startswith(THEIRS)]
        return bool(ours) and all(count.tokens and not count.differing and not count.flips for count in ours)


@click.command("sampling", help="\b\n" + __doc__.replace("\n\n", "\n\n\b\n"))
@model_options(default_newest=False)
@click.option("--tokens", type=click.IntRange(min=1), default=100_000, show_default=True, help="tokens to sample")
@click.option("--seed", type=click.IntRange(min=0), default=1234, show_default=True, help="of prompts, draws, batches")
@click.option("--dtype", type=click.Choice(["float32", "bfloat16"]), default="float32", show_default=True)
@click.option("--record", is_flag=True, help="append the result to benchmarks/sampling.md")
def command(chosen: Chosen, tokens: int, seed: int, dtype: str, record: bool) -> int:
    """See the head of this module."""
    code = records.code_to_record() if record else ""
    from nemotron_engines.modeling.threads import set_threads
    from nemotron_prove.sampled import Sampler, load

    set_threads(1)  # more would cut arrays in other places
    model = load(chosen, dtype)
    proof, sampler = Proof(chosen.artifact.reference, dtype), Sampler(model, seed)
    done, began = 0, time.monotonic()
    doing(f"0 of {tokens:,} tokens")
    with heartbeat("prove"):
        while done < tokens:
            batch = sampler.sample(tokens - done)
            new = sum(len(answer.ids) for answer in batch.answers)
            doing(f"{done:,} of {tokens:,} tokens computed again, {done + new:,} sampled")
            for way, found in batch.ways():
                proof.ways.setdefault(way, Count()).add(*found)
            done += new
            left = (time.monotonic() - began) / done * (tokens - done)
            doing(f"{done:,} of {tokens:,} tokens computed again, about {clock(left)} left")
    proof.seconds = dict(sampler.seconds)
    chosen.look.tell(asdict(proof) | {"holds": proof.holds}, table(proof))
    if record:
        about = f"{proof.model}, {dtype}, seed {seed}, {(time.monotonic() - began) / 60:.0f} minutes"
        say(f"appended to {records.add('sampling.md', HEAD, about, code, ['```text', table(proof), '```'])}")
    return 0 if proof.holds else 1


def table(proof: Proof) -> str:
    """The figures for people."""
    rows = [("log-probabilities computed again", "tokens", "differ", "largest", "other experts")]
    for way, count in proof.ways.items():
        share = f"{count.differing:,} ({count.differing / max(count.tokens, 1):.1%})"
        rows.append((way, f"{count.tokens:,}", share, f"{count.largest:.1e}", f"{count.flips:,}"))
    wide = [max(len(row[n]) for row in rows) for n in range(5)]
    lines = ["  ".join([row[0].ljust(wide[0]), *(cell.rjust(w) for cell, w in zip(row[1:], wide[1:], strict=True))])
             for row in rows]  # fmt: skip
    ours, theirs = proof.seconds["decoding"], proof.seconds["transformers' generate"]
    compared = proof.seconds["decoding, compared"]
    lines.append(f"decoding took {ours:.1f} s of CPU; {compared / theirs:.2f} times as long as transformers' generate")
    verdict = "the same bits in every way" if proof.holds else "NOT the same bits"
    return "\n".join([f"{proof.model}, {proof.dtype}: {verdict}", *lines])
