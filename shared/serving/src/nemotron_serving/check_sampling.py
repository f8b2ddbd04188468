"""`nemotron check-sampling`: whether sampling and training compute the same log-probabilities, bit by bit.

nemotron check-sampling rl                        100,000 tokens that the model samples
nemotron check-sampling ./folder --tokens 5000 --seed 7 --dtype bfloat16

The model continues random prompts, in batches of random size. Then the log-probability of each token is recomputed in
every way that training or another batch might, and compared bit by bit with the sampled one. The result of
transformers' own code is shown for comparison. If a bit differs, the exit code is 1.
"""

import time
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

import click

from nemotron_serving.options import Chosen, model_options
from nemotron_shared.system.console import clock, doing
from nemotron_shared.system.errors import UserError
from nemotron_shared.tracking.progress import heartbeat

if TYPE_CHECKING:
    from transformers import PreTrainedModel

THEIRS = "transformers"
"""First word of the ways that are not ours and need not agree."""


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
class Comparison:
    """Everything that was counted; CPU seconds by what took them."""

    model: str
    dtype: str
    ways: dict[str, Count] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)

    @property
    def holds(self) -> bool:
        """Something was compared, and none of our ways differs."""
        ours = [count for way, count in self.ways.items() if not way.startswith(THEIRS)]
        return bool(ours) and all(count.tokens and not count.differing and not count.flips for count in ours)


@click.command("check-sampling", help="\b\n" + __doc__.replace("\n\n", "\n\n\b\n"))
@model_options(default_newest=False)
@click.option("--tokens", type=click.IntRange(min=1), default=100_000, show_default=True, help="tokens to sample")
@click.option("--seed", type=click.IntRange(min=0), default=1234, show_default=True, help="of prompts, draws, batches")
@click.option("--dtype", type=click.Choice(["float32", "bfloat16"]), default="float32", show_default=True)
def command(chosen: Chosen, tokens: int, seed: int, dtype: str) -> int:
    """Run the command; see the module docstring."""
    from nemotron_engines.exact.recompute import Sampler
    from nemotron_engines.modeling.build import set_threads

    set_threads(1)  # more threads would split arrays in other places
    sampler = Sampler(_load(chosen, dtype), seed)
    found = Comparison(chosen.artifact.reference, dtype)
    done, began = 0, time.monotonic()
    doing(f"0 of {tokens:,} tokens")
    with heartbeat("check-sampling"):
        while done < tokens:
            batch = sampler.sample(tokens - done)
            new = sum(len(answer.ids) for answer in batch.answers)
            doing(f"{done:,} of {tokens:,} tokens computed again, {done + new:,} sampled")
            for way, compared in batch.ways():
                found.ways.setdefault(way, Count()).add(*compared)
            done += new
            left = (time.monotonic() - began) / done * (tokens - done)
            doing(f"{done:,} of {tokens:,} tokens computed again, about {clock(left)} left")
    found.seconds = dict(sampler.seconds)
    chosen.look.tell(asdict(found) | {"holds": found.holds}, table(found))
    return 0 if found.holds else 1


def _load(chosen: Chosen, dtype: str) -> "PreTrainedModel":
    """Load the model on the CPU.

    Raises:
        UserError: a model that cannot be computed so that every way gives the same bits.
    """
    import torch

    from nemotron_engines.exact.scoring import why_not
    from nemotron_engines.modeling.build import load_model
    from nemotron_shared.config.schema import ModelLoadingEngine

    kernels = chosen.allow_reference_kernels
    engine = ModelLoadingEngine(
        name="check-sampling", device="cpu", attn_implementation="sdpa", allow_reference_kernels=kernels
    )
    artifact = chosen.artifact
    model = load_model(artifact.path, engine, trusted=artifact.trusted).eval()
    if reason := why_not(model):
        raise UserError(f"{artifact.reference}: {reason}", "give a NemotronH model")
    return model.to(getattr(torch, dtype))


def table(found: Comparison) -> str:
    """The figures as a table."""
    rows = [("log-probabilities computed again", "tokens", "differ", "largest", "other experts")]
    for way, count in found.ways.items():
        share = f"{count.differing:,} ({count.differing / max(count.tokens, 1):.1%})"
        rows.append((way, f"{count.tokens:,}", share, f"{count.largest:.1e}", f"{count.flips:,}"))
    wide = [max(len(row[n]) for row in rows) for n in range(5)]
    lines = ["  ".join([row[0].ljust(wide[0]), *(cell.rjust(w) for cell, w in zip(row[1:], wide[1:], strict=True))])
             for row in rows]  # fmt: skip
    ours, theirs = found.seconds["decoding"], found.seconds["transformers' generate"]
    compared = found.seconds["decoding, compared"]
    lines.append(f"decoding took {ours:.1f} s of CPU; {compared / theirs:.2f} times as long as transformers' generate")
    verdict = "the same bits in every way" if found.holds else "NOT the same bits"
    return "\n".join([f"{found.model}, {found.dtype}: {verdict}", *lines])
