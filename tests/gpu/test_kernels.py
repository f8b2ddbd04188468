"""The kernels of mamba-ssm and causal-conv1d against our reference kernels: outputs and gradients on a GPU."""

import os
from collections.abc import Callable
from typing import Any

import pytest
import torch
from gpu_bench import kernels
from gpu_bench.kernels import SHAPES, TOLERANCES

from nemotron_engines.kernels import mamba_ops

pytestmark = pytest.mark.gpu
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
SCAN = "mamba_ssm.ops.triton.ssd_combined"
UPDATE = "mamba_ssm.ops.triton.selective_state_update"
CONVOLUTION = "causal_conv1d"
# Each combination is compiled and tuned anew, which takes up to a minute; these are the ones that models use.
ROWS = [("tiny", "float32", True), ("tiny", "bfloat16", True), ("super3-1b", "float32", True),
        ("super3-1b", "bfloat16", True), ("super3-1b", "bfloat16", False)]  # fmt: skip
NAMES = [f"{shape}-{dtype}-{'packed' if packed else 'one document'}" for shape, dtype, packed in ROWS]


def compare(
    record: Callable[[str, object], None],
    found: dict[str, torch.Tensor],
    expected: dict[str, torch.Tensor],
    limit: float,
) -> None:
    """Record the largest difference, and fail above the limit."""
    all_of_them = kernels.differences(found, expected)
    name, largest = kernels.worst(all_of_them)
    for key, value in {"difference": largest, "of": name, "limit": limit, "all": all_of_them}.items():
        record(key, value)
    assert largest <= limit, {name: f"{value:.1e}" for name, value in all_of_them.items()}


def record_times(record: Callable[[str, object], None], kernel: Any, reference: Any, inputs: kernels.Inputs) -> None:
    """Forward and backward of both, unless other tests run on the GPU at the same time."""
    if "PYTEST_XDIST_WORKER" not in os.environ:
        record("kernel_ms", kernels.milliseconds(lambda: kernels.results(kernel, inputs)))
        record("reference_ms", kernels.milliseconds(lambda: kernels.results(reference, inputs)))


@pytest.mark.parametrize(("shape", "dtype", "packed"), ROWS, ids=NAMES)
def test_scan(package, record_property, shape: str, dtype: str, packed: bool) -> None:
    kernel, reference = package(SCAN).mamba_chunk_scan_combined, mamba_ops.mamba_chunk_scan_combined
    inputs = kernels.scan_inputs(SHAPES[shape], DTYPES[dtype], "cuda", packed=packed)
    found, expected = kernels.results(kernel, inputs), kernels.results(reference, inputs)
    record_times(record_property, kernel, reference, inputs)
    compare(record_property, found, expected, TOLERANCES[DTYPES[dtype]])


@pytest.mark.parametrize(("shape", "dtype", "packed"), ROWS, ids=NAMES)
def test_convolution(package, record_property, shape: str, dtype: str, packed: bool) -> None:
    kernel, reference = package(CONVOLUTION).causal_conv1d_fn, mamba_ops.causal_conv1d_fn
    inputs = kernels.convolution_inputs(SHAPES[shape], DTYPES[dtype], "cuda", packed=packed)
    found, expected = kernels.results(kernel, inputs), kernels.results(reference, inputs)
    record_times(record_property, kernel, reference, inputs)
    compare(record_property, found, expected, TOLERANCES[DTYPES[dtype]])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_state_update(package, record_property, shape: str, dtype: str) -> None:
    inputs = kernels.step_inputs(SHAPES[shape], DTYPES[dtype], "cuda")
    found = kernels.step_results(package(UPDATE).selective_state_update, inputs, "state")
    expected = kernels.step_results(mamba_ops.selective_state_update, inputs, "state")
    compare(record_property, found, expected, TOLERANCES[DTYPES[dtype]])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_convolution_update(package, record_property, shape: str, dtype: str) -> None:
    inputs = kernels.convolution_step_inputs(SHAPES[shape], DTYPES[dtype], "cuda")
    found = kernels.step_results(package(CONVOLUTION).causal_conv1d_update, inputs, "conv_state")
    expected = kernels.step_results(mamba_ops.causal_conv1d_update, inputs, "conv_state")
    compare(record_property, found, expected, TOLERANCES[DTYPES[dtype]])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_reference_kernels_give_on_a_gpu_what_they_give_on_a_cpu(record_property, shape: str, dtype: str) -> None:
    small = SHAPES[shape]._replace(batch=1, length=256)
    results = {}
    for device in ("cuda", "cpu"):
        scan = kernels.scan_inputs(small, DTYPES[dtype], device, packed=True)
        convolution = kernels.convolution_inputs(small, DTYPES[dtype], device, packed=True)
        by_function = {
            "scan": kernels.results(mamba_ops.mamba_chunk_scan_combined, scan),
            "convolution": kernels.results(mamba_ops.causal_conv1d_fn, convolution),
        }
        results[device] = {f"{f} {n}": t.cpu() for f, found in by_function.items() for n, t in found.items()}
    compare(record_property, results["cuda"], results["cpu"], {"float32": 1e-4, "bfloat16": 1e-2}[dtype])
