"""What draws the completions of a step, if that is vLLM: in this process, in a separate one, or in a server elsewhere.

    with vllm_for(task, trainer) as generator:
        generator.take(model)                       the weights, before they are first drawn with
        generator.draw(prompts, seeds)              [(ids, log-probabilities), ...]

The first two hand over the same weights under their names in a checkpoint, without a file, and adapters through one. A
separate process has one end of a pair of sockets as its input, so no other process can reach it, and it ends when the
other end is closed.
"""

import json
import math
import os
import shutil
import socket
import struct
import subprocess
import time
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager, suppress
from copy import deepcopy
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Protocol

import torch
from peft.tuners.lora import LoraLayer
from torch import Tensor
from transformers.core_model_loading import revert_weight_conversion

from nemotron_engines.lora.export import save_adapter
from nemotron_engines.lora.kinds import without_adapters
from nemotron_shared.system.errors import UserError
from nemotron_shared.system.process import end_group, ending_with_us
from stages.rl.engines.trl import vllm_program
from stages.rl.engines.trl.vllm_http import Elsewhere
from stages.rl.engines.trl.vllm_needs import python_of
from stages.rl.schema import RLConfig, TRLEngine

Drawn = list[tuple[list[int], list[float]]]
"""Ids and log-probabilities in nats of each completion."""
CONTINUE = "run the same command again, which continues from the last checkpoint"
ANOTHER_MODEL = 1.05
"""A step's `token_mult_prob_error` where both compute in float32 and vLLM has other weights; rounding makes 1.00001."""
FAR_APART = 1.5
"""The same for the first step where they do not compute alike; bfloat16 makes 1.005 of a small model."""
LOOK_SECONDS, END_SECONDS = 0.5, 5.0


class Calls(Protocol):
    """What each form can be asked."""

    version: str
    """Of vLLM."""

    def take(self, weights: Mapping[str, Tensor]) -> None:
        """Compute with these weights from now on."""

    def take_adapter(self, folder: str, number: int) -> None:
        """Add this adapter from now on, and no other."""

    def draw(self, prompts: Sequence[Sequence[int]], seeds: Sequence[int], most: int) -> Drawn:
        """A completion of each prompt."""
        ...

    def rest(self) -> None:
        """Give memory free until weights are taken again."""


class InProcess:
    """vLLM in this process."""

    def __init__(self, folder: Path, settings: dict[str, Any]) -> None:
        self.version = vllm_program.version()
        with _in_a_sentence():
            self._sampler = vllm_program.Sampler(str(folder), settings)

    def take(self, weights: Mapping[str, Tensor]) -> None:
        """See `Calls`."""
        with _in_a_sentence():
            self._sampler.take(weights.items())

    def take_adapter(self, folder: str, number: int) -> None:
        """See `Calls`."""
        self._sampler.take_adapter(folder, number)

    def draw(self, prompts: Sequence[Sequence[int]], seeds: Sequence[int], most: int) -> Drawn:
        """See `Calls`."""
        with _in_a_sentence():
            return self._sampler.draw(prompts, seeds, most)

    def rest(self) -> None:
        """See `Calls`."""
        self._sampler.rest()


@contextmanager
def _in_a_sentence() -> Generator[None]:
    """An error of vLLM as one sentence."""
    try:
        yield
    except Exception as error:  # a signal is none
        raise _failed(vllm_program.sentence(error)) from error


def _failed(said: str) -> UserError:
    remedy, lower = "set engine.generation=null", said.lower()
    if "memory" in lower:
        change = "raise" if "increas" in lower else "lower"
        remedy = f"{change} engine.vllm.gpu_memory_utilization (on a CPU: engine.vllm.cpu_cache_gib)"
    return UserError(f"vLLM: {said}", f"{remedy}, or correct what it names; {CONTINUE}")


class OwnProcess:
    """vLLM in a separate process, which this one starts, watches and ends.

    Args:
        program: what is started, before the folder and the file of settings.
        log: file for its output.
        patience: seconds that it may take for an answer.
        variables: of its environment, besides ours.
    """

    def __init__(
        self, program: Sequence[str], folder: Path, settings: dict[str, Any], log: Path, patience: float,
        variables: Mapping[str, str],
    ) -> None:  # fmt: skip
        self._log = log
        told = folder / "settings.json"
        told.write_text(json.dumps(settings))
        ours, theirs = socket.socketpair()
        with theirs, log.open("wb") as file:
            self._process = subprocess.Popen(
                ending_with_us([*program, str(folder), str(told)], group=True),
                stdin=theirs.fileno(), stdout=file, stderr=file, env={**os.environ, **variables},
                start_new_session=True,
            )  # fmt: skip
        self._connection = Connection(ours.detach())
        try:
            self.wait_for(patience)
            self.version: str = self._answer()
        except BaseException:
            self.close()
            raise

    @property
    def pid(self) -> int:
        """Of the process that leads its group."""
        return self._process.pid

    def wait_for(self, seconds: float) -> None:
        """Take it for hung when it has not answered, or not read what it is sent, for so long."""
        self._patience = seconds
        with socket.socket(fileno=os.dup(self._connection.fileno())) as line:
            whole_and_micro = struct.pack("ll", math.ceil(seconds), 0)
            line.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, whole_and_micro)

    def _ended(self) -> UserError:
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(END_SECONDS)
        code = self._process.poll()
        how = f"was ended by signal {-code}" if code is not None and code < 0 else f"ended with exit code {code}"
        lines = [line.strip() for line in self._log.read_text(errors="replace").splitlines() if line.strip()]
        return UserError(f"vLLM's process {': '.join([how, *lines[-1:]])}", f"see {self._log}; {CONTINUE}")

    def _silent(self) -> UserError:
        what = f"vLLM's process has not answered for {self._patience:g} s (engine.vllm.patience_seconds)"
        return UserError(what, f"see {self._log}; {CONTINUE}")

    def _answer(self) -> Any:
        until = time.monotonic() + self._patience
        try:
            while not self._connection.poll(LOOK_SECONDS):
                if time.monotonic() > until:
                    raise self._silent()
            how, value = self._connection.recv()
        except (EOFError, ConnectionError) as error:
            raise self._ended() from error
        if how == "failed":
            raise _failed(value)
        return value

    def _ask(self, method: str, *arguments: Any, weights: Iterable[Tensor] = ()) -> Any:
        try:
            self._connection.send((method, arguments))
            vllm_program.send(self._connection, weights)
        except BlockingIOError as error:
            raise self._silent() from error
        except (EOFError, ConnectionError) as error:
            raise self._ended() from error
        return self._answer()

    def take(self, weights: Mapping[str, Tensor]) -> None:
        """See `Calls`."""
        parts = [(name, vllm_program.type_of(value), [*value.shape]) for name, value in weights.items()]
        self._ask("take", parts, weights=weights.values())

    def take_adapter(self, folder: str, number: int) -> None:
        """See `Calls`."""
        self._ask("take_adapter", folder, number)

    def draw(self, prompts: Sequence[Sequence[int]], seeds: Sequence[int], most: int) -> Drawn:
        """See `Calls`."""
        return self._ask("draw", [[*one] for one in prompts], [*seeds], most)

    def rest(self) -> None:
        """See `Calls`."""
        self._ask("rest")

    def close(self) -> None:
        """End it, even while it works."""
        self._connection.close()
        end_group(self._process)


def weights_of(model: Any, *, merged: bool = True) -> dict[str, Tensor]:
    """A model's weights by their names in a checkpoint.

    Args:
        merged: add its adapters to what they adapt; without, the frozen weights alone.
    """
    base = without_adapters(model)
    tensors = {name.replace(".base_layer.", "."): value for name, value in base.state_dict().items()}
    for name, layer in base.named_modules() if merged else ():
        if isinstance(layer, LoraLayer):
            whole = tensors[f"{name}.weight"]
            tensors[f"{name}.weight"] = whole + sum(layer.get_delta_weight(one) for one in layer.active_adapters)
    # tied ones by both of their names: vLLM 0.32 packs a head on a CPU, and puts embeddings alone next to the old one
    kept = {name: value for name, value in tensors.items() if ".lora_" not in name}
    return revert_weight_conversion(base, kept)


ADAPTED = frozenset({"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj", "in_proj"})
"""Layers whose adapters vLLM adds on its own, in the lane `vllm_cpu` to a Qwen3 and a dense NemotronH."""


def added_by_vllm(model: Any) -> int:
    """The highest rank of a model's adapters if vLLM adds them; 0 if it has none, or if they are merged for vLLM."""
    layers = {name: one for name, one in model.named_modules() if isinstance(one, LoraLayer)}
    alone = all(name.rpartition(".")[2] in ADAPTED for name in layers)
    rank = max((rank for one in layers.values() for rank in one.r.values()), default=0)
    return rank if alone and rank <= vllm_program.RANKS[-1] else 0


class VLLM:
    """Draws completions by vLLM with the weights of a training.

    Args:
        calls: one of the forms.
        most: tokens of a completion.
        adapters: folder through which adapters are handed over; None: they are added to the weights.
        stalest: steps that the weights of training completions may be older than those that learn.
        longest: tokens of a prompt with its completion that vLLM was started for; it would cut others in silence.
        sleeps: whether vLLM gives memory free between steps.
        alike: whether it and training compute the same, but for the rounding of float32.
    """

    def __init__(
        self, calls: Calls, most: int, adapters: Path | None = None, *, longest: float = math.inf,
        sleeps: bool = False, alike: bool = True, stalest: int = 0,
    ) -> None:  # fmt: skip
        self._limits = (ANOTHER_MODEL if alike else FAR_APART), (ANOTHER_MODEL if alike else math.inf)
        """For the first step, and for the others."""
        self._calls, self._most, self._adapters, self._sleeps = calls, most, adapters, sleeps
        self._longest, self._period = longest, stalest + 1
        self._taken: int | None = None
        self.name = f"vLLM {calls.version}"
        self.stale = 0
        """Steps that the weights of the newest completions were older than those of training."""
        self._number = 0
        self.seconds = {"handover_seconds": 0.0, "generation_seconds": 0.0}
        """Since they were last taken."""

    def draw(self, model: Any, step: int, prompts: Sequence[Sequence[int]], seeds: Sequence[int]) -> Drawn:
        """A completion of each prompt, by weights that are handed over when they are due.

        Args:
            step: number of the updates that the weights have had.

        Raises:
            UserError: a prompt leaves no room for the whole completion.
        """
        begun = time.monotonic()
        if (tokens := max(map(len, prompts)) + self._most) > self._longest:
            what = f"an environment made a prompt so long that it takes {tokens:,} tokens with its completion, and vLLM"
            what += f" was started for {self._longest:,}"
            raise UserError(what, "raise engine.environments.max_episode_tokens, or set engine.generation=null")
        taken = self._taken
        if taken is None or self._is_due(step, taken, model.training):
            self._hand_over(model)
            self._taken = taken = step
        self.stale = step - taken
        handed = time.monotonic()
        found = self._calls.draw(prompts, seeds, self._most)
        self.seconds["handover_seconds"] += handed - begun
        self.seconds["generation_seconds"] += time.monotonic() - handed
        return found

    def _is_due(self, step: int, taken: int, training: bool) -> bool:
        """Whether these weights are handed over: for training at every so many steps by their numbers, which a
        continued run keeps to; and for a validation, which judges the weights that it is of."""
        return step // self._period != taken // self._period if training else step != taken

    def _hand_over(self, model: Any) -> None:
        with torch.no_grad():
            if self._adapters is None:
                self._calls.take(weights_of(model))
                return
            if self._taken is None:  # the frozen weights, once
                self._calls.take(weights_of(model, merged=False))
        self._number += 1
        folder = self._adapters / f"{self._number}"
        save_adapter(model, folder, None)
        self._calls.take_adapter(str(folder), self._number)
        shutil.rmtree(self._adapters / f"{self._number - 1}", ignore_errors=True)  # its own was read when it first drew

    def rest(self) -> None:
        """Nothing is drawn until the next step: give memory free, where that was requested."""
        if self._sleeps:
            self._calls.rest()
            self._taken = None

    def require_same_model(self, step: int, error: float) -> None:
        """Check a step's `token_mult_prob_error` for a vLLM that did not take the weights, and said nothing.

        Nothing is known of a step whose completions were meant to be drawn by older weights.

        Raises:
            UserError: it did not.
        """
        if self.stale:
            return
        limit, later = self._limits
        self._limits = later, later
        if error > limit:
            what = f"step {step}: vLLM computes another model than the one that is trained: the probabilities of its"
            what += f" tokens are {error:.3g} times apart, and rounding makes less than {limit:g} of that"
            raise UserError(what, "set engine.generation=transformers: this version does not reload such weights")

    def take_seconds(self) -> dict[str, float]:
        """Time of the current step so far; the next call counts from here."""
        found, self.seconds = self.seconds, dict.fromkeys(self.seconds, 0.0)
        return found


@contextmanager
def _emptied(folder: Path) -> Generator[Path]:
    """A new folder inside this block, also where a killed run left one."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


SEEN = "CUDA_VISIBLE_DEVICES"


def among(seen: str | None, gpu: str) -> str:
    """A GPU by its place among those that this process sees: of `2,3`, 1 is 3. A scheduler may have given it those.

    Raises:
        UserError: it does not see so many.
    """
    if not seen or not gpu.isdecimal():
        return gpu
    known = [one.strip() for one in seen.split(",")]
    if int(gpu) < len(known):
        return known[int(gpu)]
    what = f"engine.vllm.gpus={gpu}: {SEEN}={seen} has {len(known)} GPU{'s' * (len(known) != 1)}, counted from 0"
    raise UserError(what, "name another, or ask the scheduler for more (gpus_per_node)")


@contextmanager
def vllm_for(config: RLConfig[TRLEngine], model: Any, longest: int, ends: Sequence[int], log: Path) -> Generator[VLLM]:
    """vLLM as the config wants it, until the end of the block.

    Args:
        model: as it is trained, with its adapters.
        longest: tokens of a prompt with its completion.
        ends: tokens that end a completion.
        log: file for the output of a separate process; next to it, what it is started with, and weights for a server
            elsewhere, until the end.

    Raises:
        UserError: it does not start; the message has the reason.
    """
    told, grpo, base = config.engine.vllm, config.grpo, without_adapters(model)
    with _emptied(log.with_suffix("")) as folder:
        described = deepcopy(base.config)
        described.architectures = [type(base).__name__]
        described.save_pretrained(folder)
        rank = added_by_vllm(model) if told.address is None else 0
        settings = {
            "dtype": config.engine.generation_dtype or config.engine.dtype,
            "longest": longest,
            "temperature": grpo.temperature,
            "top_p": grpo.top_p,
            "ends": [*ends],
            "share": told.gpu_memory_utilization,
            "cache_gib": told.cpu_cache_gib,
            "sleeps": told.sleep,
            "on_gpu": base.device.type == "cuda",
            "rank": rank,
            "seed": config.run.seed,
        }
        adapters = folder if rank else None
        drops = config.engine.peft is not None and config.engine.peft.dropout > 0
        alike = not drops and "bfloat16" not in (settings["dtype"], config.engine.dtype)
        how: dict[str, Any] = {"longest": longest, "sleeps": told.sleep, "alike": alike, "stalest": grpo.max_staleness}
        if config.engine.generation == "vllm":
            yield VLLM(InProcess(folder, settings), grpo.max_new_tokens, adapters, **how)
            return
        if told.address is not None:
            tokens = {"vocabulary": base.config.get_text_config().vocab_size}
            elsewhere = Elsewhere(told.address, folder, settings | tokens, told.patience_seconds)
            yield VLLM(elsewhere, grpo.max_new_tokens, adapters, **how)
            return
        program = [python_of(config), "-P", vllm_program.__file__]
        variables = {} if told.gpus is None else {SEEN: among(os.environ.get(SEEN), str(told.gpus))}
        process = OwnProcess(program, folder, settings, log, told.patience_seconds, variables)
        try:
            yield VLLM(process, grpo.max_new_tokens, adapters, **how)
        finally:
            process.close()
