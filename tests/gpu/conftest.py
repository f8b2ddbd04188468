"""Tests that need a CUDA GPU: they fail where there is none. Where a package is missing they say what was not run.

    pytest -m gpu -n0 tests/gpu           on a machine with an NVIDIA GPU; ci/gpu.sh does it and writes a report

With GPU_RESULTS=results.jsonl each test adds a line there, which benchmarks/gpu.py puts into its report:

    {"test": "test_kernels.py::test_scan[tiny-bfloat16]", "outcome": "passed", "seen": {"difference": 0.003, ...}}
"""

import json
import os
import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "benchmarks"))
RESULTS = "GPU_RESULTS"
NO_GPU = (
    "no CUDA GPU: torch.cuda.is_available() is false, so none of the {count} GPU checks was run. "
    "Run `pytest -m gpu` on a machine with an NVIDIA GPU and a torch built for CUDA."
)


def has_gpu() -> bool:
    """Whether torch sees a GPU."""
    import torch

    return torch.cuda.is_available()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Without a GPU one test is kept, which then fails with the reason; -m has chosen before."""
    ours = [item for item in items if item.get_closest_marker("gpu")]
    if not ours or has_gpu():
        return
    config.hook.pytest_deselected(items=ours[1:])
    items[:] = [item for item in items if item not in ours[1:]]
    ours[0].user_properties.append(("gpu_checks", len(ours)))


@pytest.fixture(autouse=True)
def gpu(request: pytest.FixtureRequest) -> None:
    """Fail where there is no GPU."""
    if request.node.get_closest_marker("gpu") and not has_gpu():
        count = dict(request.node.user_properties).get("gpu_checks", "")
        pytest.fail(NO_GPU.format(count=count), pytrace=False)


@pytest.fixture
def package() -> Callable[[str], ModuleType]:
    """Import a module that only a GPU environment has; a test that cannot have it says so and is not run."""

    def load(name: str) -> ModuleType:
        try:
            return import_module(name)
        except ImportError as error:
            pytest.skip(f"not run: import {name}: {error}")

    return load


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """One line per test, written at once, so that a time limit loses none that came before."""
    outcome = yield
    report = outcome.get_result()
    file = os.environ.get(RESULTS)
    over = report.when == "call" or (report.when == "setup" and not report.passed)
    if not file or not over or not item.get_closest_marker("gpu"):
        return
    line = {
        "test": item.nodeid.removeprefix("tests/gpu/"),
        "outcome": report.outcome,
        "seen": dict(item.user_properties),
    }
    with Path(file).open("a", encoding="utf-8") as results:
        results.write(json.dumps(line | {"reason": reason_of(report)}) + "\n")


def reason_of(report: pytest.TestReport) -> str:
    """Why a test was skipped or failed, in one line."""
    if report.passed:
        return ""
    text = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longreprtext
    lines = [line.removeprefix("E").strip() for line in text.splitlines() if line.startswith("E ")] or text.splitlines()
    return lines[0].removeprefix("Skipped: ") if lines else "no reason given"
