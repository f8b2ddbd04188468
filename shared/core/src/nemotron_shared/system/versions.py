"""Versions of the software that computes a result."""

import importlib.metadata
import platform

RECORDED_PACKAGES = (
    "torch", "transformers", "trl", "lm-eval", "tokenizers", "numpy", "pyarrow", "megatron-core", "megatron-bridge",
    "nemo-automodel", "nemo-evaluator", "vllm", "mamba-ssm", "causal-conv1d",
)  # fmt: skip


def environment() -> dict[str, str]:
    """Versions of the software that computed the result."""
    versions = {name: package_version(name) for name in RECORDED_PACKAGES}
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        **{name: version for name, version in versions.items() if version},
    }


def package_version(name: str) -> str | None:
    """Version of an installed distribution, None if it is not installed."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None
