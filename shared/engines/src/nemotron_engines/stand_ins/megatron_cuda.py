"""A fake `torch.cuda` for machines without a GPU, with everything that Megatron's training loop uses.

Megatron creates tensors with `device="cuda"`, uses streams and random states, and asserts that there is a GPU. Inside
`faked_cuda()` all of that means the CPU; afterwards everything is restored:

    with faked_cuda():
        pretrain(container, forward_step)

No other code in the process should use `torch.cuda` inside that block.
"""

import importlib
import queue
from collections.abc import Generator
from contextlib import ExitStack, contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
from torch.overrides import TorchFunctionMode

MEMORY = 2**34  # reported bytes of device memory


class Stream:
    """A stream or an event: on a CPU, every call is already complete when it returns."""

    cuda_stream = 0

    def __init__(self, *args: Any, **kwargs: Any) -> None: ...

    def __enter__(self) -> "Stream":
        return self

    def __exit__(self, *args: object) -> None: ...

    def record_event(self, event: Any = None) -> Any:
        """A completed event."""
        return event or Stream()

    def query(self) -> bool:
        """Done."""
        return True

    def elapsed_time(self, other: Any) -> float:
        """Milliseconds; not measured."""
        return 0.0

    def is_capturing(self) -> bool:
        """No graph is being captured."""
        return False

    def _nothing(self, *args: Any, **kwargs: Any) -> None: ...

    wait_stream = wait_event = synchronize = record = wait = _nothing


class CudaMeansCPU(TorchFunctionMode):
    """Turns every `device="cuda"` and every device number into the CPU."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if "device" in kwargs:
            kwargs = kwargs | {"device": on_cpu(kwargs["device"])}
        if func is torch.Tensor.to and len(args) > 1:
            args = (args[0], on_cpu(args[1]), *args[2:])
        if func is torch.Tensor.type and len(args) == 1 and not kwargs:
            return func(*args).replace("torch.", "torch.cuda.")  # gradient clipping compares this name
        return func(*args, **kwargs)


class EmptyState(torch.nn.Module):
    """The empty `_extra_state` that checkpoints of Transformer Engine's layers have, and that they ask for."""

    def get_extra_state(self) -> None:
        """Nothing: FP8 is off."""

    def set_extra_state(self, state: Any) -> None:
        """Ignored."""

    def _load_from_state_dict(  # ty: ignore[incompatible-method-override]
        self, state_dict: dict[str, Any], prefix: str, *rest: Any
    ) -> None:
        state_dict.setdefault(f"{prefix}_extra_state")  # Bridge removes it
        super()._load_from_state_dict(state_dict, prefix, *rest)


class Norm(EmptyState, torch.nn.RMSNorm):
    """A norm that stands alone in Transformer Engine's layers, too."""

    def __init__(self, config: Any, hidden_size: int, eps: float = 1e-5, **_: Any) -> None:
        super().__init__(hidden_size, eps=eps)


class DuplicatedLinear(EmptyState, torch.nn.Linear):
    """The projections into and out of the experts' latent space, for which megatron-core has only one class.

    Every process holds the whole matrix, which `tensor_model_parallel` tells Bridge's conversion.
    """

    tensor_model_parallel = False

    def __init__(self, inputs: int, outputs: int, *, config: Any, init_method: Any, bias: bool, **_: Any) -> None:
        super().__init__(inputs, outputs, bias=bias, dtype=config.params_dtype)
        if config.perform_initialization:
            init_method(self.weight)

    def forward(self, input: torch.Tensor) -> tuple[torch.Tensor, None]:  # ty: ignore[incompatible-method-override]
        """Output, and None for the bias."""
        return super().forward(input), None


def on_cpu(device: Any) -> Any:
    """The CPU for a CUDA device or a device number; anything else (a dtype, None) unchanged."""
    is_number = isinstance(device, int) and not isinstance(device, bool)
    is_cuda = isinstance(device, (str, torch.device)) and str(device).startswith("cuda")
    return "cpu" if is_number or is_cuda else device


def _nothing(*args: Any, **kwargs: Any) -> None: ...


def _itself(self: Any, *args: Any, **kwargs: Any) -> Any:
    return self


def _cpu_state(*args: Any, **kwargs: Any) -> torch.Tensor:
    return torch.default_generator.get_state()


def _set_cpu_state(state: torch.Tensor, *args: Any, **kwargs: Any) -> None:
    torch.default_generator.set_state(state)


def _cuda_functions() -> dict[str, Any]:
    properties = SimpleNamespace(name="cpu", major=9, minor=0, multi_processor_count=1, total_memory=MEMORY)
    zero = ("memory_allocated", "max_memory_allocated", "memory_reserved", "max_memory_reserved")
    nothing = (
        "set_device", "synchronize", "empty_cache", "ipc_collect", "reset_peak_memory_stats", "manual_seed_all",
        "set_stream",
    )  # fmt: skip
    return {
        "is_available": lambda: True,
        "current_device": lambda: "cpu",
        "device_count": lambda: 1,
        "get_device_capability": lambda device=None: (9, 0),
        "get_device_properties": lambda device=None: properties,
        "device": lambda device=None: nullcontext(),
        "stream": lambda stream=None: nullcontext(),
        "current_stream": lambda device=None: Stream(),
        "default_stream": lambda device=None: Stream(),
        "Stream": Stream,
        "Event": Stream,
        "is_current_stream_capturing": lambda: False,
        "get_rng_state": _cpu_state,
        "set_rng_state": _set_cpu_state,
        "initial_seed": torch.initial_seed,
        "manual_seed": torch.default_generator.manual_seed,
        "memory_stats": lambda device=None: {},
        "mem_get_info": lambda device=None: (MEMORY, MEMORY),
        **dict.fromkeys(zero, lambda device=None: 0),
        **dict.fromkeys(nothing, _nothing),
        **{
            f"{kind}Tensor": getattr(torch, f"{kind}Tensor")
            for kind in ("Float", "Int", "Long", "BFloat16", "Half", "Byte", "Double", "Bool")
        },
    }


def _replacements() -> list[tuple[Any, dict[str, Any]]]:
    """(object, names to replace in it)."""
    accelerator = {
        "is_available": lambda: False,
        "current_stream": lambda device=None: Stream(),
        "current_device_index": lambda: 0,
        "memory_allocated": lambda device=None: 0,
        "max_memory_allocated": lambda device=None: 0,
        "synchronize": _nothing,
    }
    random = {"_set_cuda_rng_state": _set_cpu_state, "_get_cuda_rng_state": _cpu_state}
    no_compiler = {"compile_helpers": _nothing}  # the wheel contains them compiled, without a Makefile to rebuild
    # Write files from threads of this process; the stock queue starts a process, which outlives a killed run.
    written: queue.Queue[Any] = queue.Queue()
    results = {"get_write_results_queue": lambda mp_mode="spawn": written}
    latent = {"HAVE_TE": True, "TELinear": DuplicatedLinear}
    return [
        (torch.cuda, _cuda_functions()),
        (torch.cuda.nvtx, {"range_push": _nothing, "range_pop": _nothing}),
        (torch.accelerator, accelerator),
        (torch.Tensor, {"cuda": _itself, "pin_memory": _itself}),
        (torch.nn.Module, {"cuda": _itself}),
        (importlib.import_module("megatron.core.tensor_parallel.random"), random),
        (importlib.import_module("megatron.core.datasets.utils"), no_compiler),
        (importlib.import_module("megatron.bridge.training.initialize"), no_compiler),
        (importlib.import_module("megatron.core.dist_checkpointing.strategies.filesystem_async"), results),
        (importlib.import_module("megatron.core.transformer.moe.moe_layer"), latent),
        # The last norm of a hybrid is hard-coded in the class, outside the spec.
        (importlib.import_module("megatron.core.models.hybrid.hybrid_block"), {"TENorm": Norm}),
    ]


@contextmanager
def faked_cuda() -> Generator[None]:
    """Let the CPU answer for CUDA inside the block. The stubs (transformer_engine.py) must have been installed."""
    with ExitStack() as stack:
        for target, names in _replacements():
            for name, value in names.items():
                stack.enter_context(patch.object(target, name, value))
        stack.enter_context(CudaMeansCPU())
        yield
