"""Measure the steps of a training from within, whichever engine's: a hook after each step of its optimizer.

    measure = Measure(Path("result.json"), warm_up=5, steps=20, profiled=4)
    ... train ...                                     after 29 steps the result is written and the process ends

Step times come from device events instead of the host's clock, so measuring adds no synchronisation. The profile uses
separate steps after the timed ones.
"""

import json
import os
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.profiler import ProfilerActivity, profile

GIB = 2**30
TURN = "GPU_BENCH_TURN"
"""Environment variable: a file for which a program waits before it uses the GPU, so that others measure alone."""
WAITS = ("cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize", "aten::_local_scalar_dense")
"""Events with which the host waits for the device; the last is of PyTorch, for `.item()`, and on a CPU too."""
COPIES = ("Memcpy HtoD", "Memcpy DtoH", "Memcpy DtoD", "aten::copy_", "aten::empty", "aten::empty_strided")


class Measure:
    """Times, memory and a profile of the steps of a process.

    Args:
        result: file for the figures, written after the last step.
        last: ends the process then, without the checkpoint and the model of a whole training.
    """

    def __init__(self, result: Path, warm_up: int, steps: int, profiled: int, *, last: bool = True) -> None:
        self.result, self.warm_up, self.steps, self.profiled, self.last = result, warm_up, steps, profiled, last
        self.on_gpu = torch.cuda.is_available()
        self.done = 0
        self.marks: list[Any] = []
        self.began = time.perf_counter()
        self.figures: dict[str, Any] = {}
        self.profile: Any = None
        self.handle = register_optimizer_step_post_hook(self._after_step)

    def _after_step(self, *_: Any) -> None:
        self.done += 1
        if self.done == 1:
            self.figures["seconds_to_first_step"] = round(time.perf_counter() - self.began, 1)
            if self.on_gpu:
                torch.cuda.reset_peak_memory_stats()
        if self.warm_up <= self.done <= self.warm_up + self.steps:
            self.marks.append(self._mark())
        if self.done == self.warm_up + self.steps:
            self._write_times()
            kinds = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if self.on_gpu else [])
            self.profile = profile(activities=kinds)
            self.profile.start()
        elif self.done == self.warm_up + self.steps + self.profiled:
            self._write_profile()
            self.handle.remove()
            if self.last:
                sys.stdout.flush()
                os._exit(0)

    def _mark(self) -> Any:
        if not self.on_gpu:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def _write_times(self) -> None:
        if self.on_gpu:
            torch.cuda.synchronize()
            self.figures["peak_bytes"] = torch.cuda.max_memory_allocated()
            self.figures["reserved_bytes"] = torch.cuda.max_memory_reserved()
        pairs = zip(self.marks, self.marks[1:], strict=False)
        times = [one.elapsed_time(other) if self.on_gpu else 1e3 * (other - one) for one, other in pairs]
        self.figures |= {"step_ms": round(statistics.median(times), 2), "steps_ms": [round(one, 2) for one in times]}
        self._write()

    def _write_profile(self) -> None:
        if self.on_gpu:
            torch.cuda.synchronize()
        self.profile.stop()
        self.figures |= summary(self.profile.key_averages(), self.profiled, on_gpu=self.on_gpu)
        self._write()

    def _write(self) -> None:
        self.result.write_text(json.dumps(self.figures, indent=1), encoding="utf-8")


def summary(events: Any, steps: int, *, on_gpu: bool) -> dict[str, Any]:
    """The ten longest kernels (on a CPU: operations), and how often a step waits, copies and starts a kernel."""
    took: Counter[str] = Counter()
    calls: Counter[str] = Counter()
    for event in events:
        calls[event.key] += event.count
        on_device = event.device_type.name == "CUDA"
        if on_device or not on_gpu:
            took[event.key] += event.self_device_time_total if on_gpu else event.self_cpu_time_total
    found = {
        "busy_ms": round(sum(took.values()) / 1e3 / steps, 2),
        "top": [[name[:110], round(us / 1e3 / steps, 3), calls[name] / steps] for name, us in took.most_common(10)],
        "waits": {name: calls[name] / steps for name in WAITS if calls[name]},
        "copies": {name: sum(n for key, n in calls.items() if key.startswith(name)) / steps for name in COPIES},
    }
    launches = ("cudaLaunchKernel", "cuLaunchKernel", "cudaLaunchKernelExC", "cuLaunchKernelEx")
    found["launches"] = sum(calls[name] for name in launches) / steps
    return found


def wait_for_turn() -> None:
    """Wait until the benchmark lets this program use the GPU; at once where none says when."""
    file = os.environ.get(TURN)
    while file and not Path(file).exists():
        time.sleep(0.02)


def compile_side_by_side() -> None:
    """Compile all variants of a Triton kernel in parallel before the tuner times them; it would compile one by one.

    The Mamba scan has some 150 variants of a second each.
    """
    from triton import AsyncCompileMode, testing
    from triton.runtime.autotuner import Autotuner

    tune: Callable[..., Any] = Autotuner._bench
    compiled: set[Any] = set()

    def bench(self: Any, *args: Any, config: Any, **meta: Any) -> Any:
        key = (id(self), *(str(getattr(one, "dtype", one)) for one in args))
        if key not in compiled:
            compiled.add(key)
            with ThreadPoolExecutor(os.cpu_count()) as pool, AsyncCompileMode(pool, ignore_errors=True):
                for one in self.prune_configs(meta):
                    self.fn.run(*args, **{**meta, "warmup": True}, **one.all_kwargs())
        return tune(self, *args, config=config, **meta)

    def quick(self: Any, call: Any, quantiles: Any = None) -> Any:
        return testing.do_bench(call, warmup=3, rep=15, quantiles=quantiles)

    Autotuner._bench = bench
    Autotuner.do_bench = quick  # 100 ms for each variant would take longer than to compile it
