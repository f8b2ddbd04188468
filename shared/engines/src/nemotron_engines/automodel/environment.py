"""Is this the environment that the engine was tried in? Asked before anything heavy is imported."""

import importlib.util
from importlib.metadata import PackageNotFoundError, version

from nemotron_shared.errors import UserError

INSTALL = "nemotron engine install automodel"
# Exactly what was run; the shim and the recipe subclass reach into functions that other versions may have moved.
REQUIRED = {"nemo-automodel": "0.7.0", "transformers": "5.18.0"}
KERNEL_PACKAGES = ("mamba_ssm", "causal_conv1d")


def require_environment() -> None:
    """Compare the installed packages with those that the engine was written for.

    Raises:
        UserError: a package is missing, or of another version.
    """
    for package, wanted in REQUIRED.items():
        found = installed(package)
        if found is None:
            raise UserError(f"engine 'automodel' needs the package {package}", INSTALL)
        if found != wanted:
            raise UserError(f"engine 'automodel' was made for {package} {wanted}; here is {found}", INSTALL)
    triton = installed("triton")
    # 3.9 refuses an autotune key of Automodel's LoRA kernels while they are imported
    if triton is not None and tuple(int(part) for part in triton.split(".")[:2]) >= (3, 9):
        raise UserError(f"nemo-automodel 0.7.0 cannot be imported with triton {triton}", INSTALL)


def require_kernels() -> None:
    """On a GPU the Mamba layers need the CUDA packages, whose absence Automodel notices only in the first step.

    Raises:
        UserError: one of them is missing.
    """
    missing = [name for name in KERNEL_PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        raise UserError(
            f"on a GPU engine 'automodel' needs {' and '.join(missing)}",
            "install mamba-ssm and causal-conv1d (the extra `kernels`), or use a container that has them",
        )


def installed(package: str) -> str | None:
    """Version of an installed package, without a local label such as `+cpu`."""
    try:
        return version(package).partition("+")[0]
    except PackageNotFoundError:
        return None
