"""Print what an interpreter can run, as one JSON object. Imports the modules, because installed ones may still fail.

python benchmarks/gpu_bench/programs/probe.py torch stages.sft.train nemo_automodel
"""

import importlib
import json
import platform
import sys
from typing import Any

KERNELS = ("mamba_ssm", "causal_conv1d")
REPORTED = ("torch", "transformers", "triton", "nemo_automodel", "trl", "vllm", *KERNELS)


def problem_with(module: str) -> str | None:
    """Why a module cannot be imported, in one line, or None.

    Catches everything, because an import runs other people's code, which may raise anything.
    """
    try:
        importlib.import_module(module)
    except Exception as error:
        return f"import {module}: {str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__}"
    return None


def versions() -> dict[str, str]:
    """Versions of relevant installed packages."""
    from importlib.metadata import PackageNotFoundError, version

    found = {}
    for name in REPORTED:
        try:
            found[name] = version(name.replace("_", "-"))
        except PackageNotFoundError:
            continue
    return found


def gpu() -> dict[str, Any] | None:
    """Name and memory of the first GPU, and its speed for a large matrix product."""
    import torch

    if not torch.cuda.is_available():
        return None
    properties = torch.cuda.get_device_properties(0)
    return {
        "name": properties.name,
        "memory_bytes": properties.total_memory,
        "capability": f"{properties.major}.{properties.minor}",
        "cuda": torch.version.cuda,
        "bf16_matmul_flops": matmul_speed(),
    }


def matmul_speed(size: int = 8192, rounds: int = 20) -> float:
    """Operations per second of bfloat16 products of random square matrices; the median of several."""
    import statistics

    import torch

    left, right = (torch.randn(size, size, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    seconds = []
    for _ in range(rounds):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        left @ right
        end.record()
        end.synchronize()
        seconds.append(start.elapsed_time(end) / 1e3)
    return 2 * size**3 / statistics.median(seconds[3:])


def main(modules: list[str]) -> int:
    """Print the findings. Missing torch is a finding, not a failure."""
    problems = [found for module in modules if (found := problem_with(module))]
    has_torch = problem_with("torch") is None
    print(json.dumps({
        "python": platform.python_version(),
        "versions": versions(),
        "problems": problems,
        "kernel_problems": [found for module in KERNELS if (found := problem_with(module))],
        "gpu": gpu() if has_torch else None,
    }))  # fmt: skip
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
