"""Options shared by chat, generate and serve."""

import functools
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from nemotron_app import completion
from nemotron_app.store_options import Look, store_options
from nemotron_shared.artifacts import Artifact
from nemotron_shared.models.finding import find_model
from nemotron_shared.system.console import renew

if TYPE_CHECKING:
    from nemotron_serving.model import Model

MODEL = "NAME[:V] | FOLDER | hf://ORG/NAME"
SMALL = 20_000_000
"""Bytes of weights."""


@dataclass(frozen=True)
class Chosen:
    """The model of a command line, and how to load it."""

    look: Look
    artifact: Artifact
    device: str
    threads: int | None
    allow_reference_kernels: bool

    def ready(self, size: int, most_waiting: int | None = None) -> "AbstractContextManager[Model]":
        """Load the model; imports the libraries only now."""
        if sys.stderr.isatty():  # for seconds, nothing else can be said
            renew(f"[{self.artifact.reference}] loading libraries")
        from nemotron_engines.modeling.build import set_threads
        from nemotron_serving.model import ready

        set_threads(self.threads or (1 if is_small(self.artifact.path) else None))
        kernels = self.allow_reference_kernels
        return ready(self.artifact, device=self.device, size=size, most_waiting=most_waiting, slow_kernels=kernels)


def is_small(folder: Path) -> bool:
    """Whether one thread computes as fast as several, which wait for each other whenever the machine has other work."""
    weights = folder / "model.safetensors"  # an adapter has another name, and large models have several files
    return weights.is_file() and weights.stat().st_size < SMALL


def model_options(default_newest: bool) -> Callable[[Callable[..., int | None]], Callable[..., int | None]]:
    """Add MODEL, --device and related options; they are passed as the first argument.

    Args:
        default_newest: make MODEL optional.
    """

    def decorate(command: Callable[..., int | None]) -> Callable[..., int | None]:
        @click.argument(
            "model",
            metavar=f"[{MODEL}]" if default_newest else MODEL,
            required=not default_newest,
            shell_complete=completion.models,
        )
        @click.option(
            "--device", type=click.Choice(["auto", "cpu"]), default="auto", help="auto: a GPU if there is one"
        )
        @click.option(
            "--threads", type=click.IntRange(min=1), help="CPU threads (default: torch's choice; one for tiny models)"
        )
        @click.option("--trust-code", is_flag=True, help="run the Python files of a model that cannot do without")
        @click.option("--allow-reference-kernels", is_flag=True, help="a large model on the slow pure-torch kernels")
        @store_options
        @functools.wraps(command)
        def with_model(
            look: Look, model: str | None, device: str, threads: int | None, trust_code: bool,
            allow_reference_kernels: bool, **rest: object,
        ) -> int | None:  # fmt: skip
            artifact = find_model(look.store, model, family=look.family, trusted=trust_code)
            return command(Chosen(look, artifact, device, threads, allow_reference_kernels), **rest)

        return with_model

    return decorate


def sampling_options(most_tokens: int) -> Callable[[Callable[..., int | None]], Callable[..., int | None]]:
    """Add --temperature, --top-p, --max-tokens and --seed."""
    options = (
        click.option("--temperature", type=click.FloatRange(0, 2), help="0: the likeliest token each time (default: "
                     "what the model's generation_config.json says, else 0)"),
        click.option("--top-p", type=click.FloatRange(0, 1, min_open=True), help="draw from this share of the best"),
        click.option("--max-tokens", type=click.IntRange(min=1), default=most_tokens, show_default=True,
                     help="length of an answer, at most"),
        click.option("--seed", type=click.IntRange(min=0), help="the same seed draws the same answers"),
    )  # fmt: skip

    def decorate(command: Callable[..., int | None]) -> Callable[..., int | None]:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate
