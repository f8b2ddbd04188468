"""What a change touches follows the imports."""

import importlib.util
import re
import sys
from types import ModuleType

import pytest
from support import MEMBERS, ROOT

ENGINES = "shared/engines/src/nemotron_engines"


@pytest.fixture(scope="module")
def changed() -> ModuleType:
    specification = importlib.util.spec_from_file_location("changed", ROOT / "ci" / "changed.py")
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    sys.modules["changed"] = module
    specification.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("path", "members"),
    [
        ("shared/core/src/nemotron_shared/system/errors.py", list(MEMBERS)),
        (f"{ENGINES}/nemo_rl/metrics.py", ["engines", "sft", "rl"]),
        (f"{ENGINES}/nemo_rl/tables/v0.7.0.json", ["engines", "sft", "rl"]),
        (f"{ENGINES}/megatron_bridge/loop.py", ["engines", "pretrain", "sft"]),
        ("stages/rl/rewards.py", ["rl"]),
        ("stages/sft/config/tiny.yaml", ["sft"]),
        ("shared/app/src/nemotron_app/wording.py", ["app", "serving"]),
        ("shared/cluster/src/nemotron_cluster/backends/nemo_run.txt", ["cluster", "app"]),
        ("shared/data/tests/test_hub.py", ["data"]),
        ("docs/data.md", []),
        ("uv.lock", list(MEMBERS)),
    ],
)
def test_members(changed: ModuleType, path: str, members: list[str]) -> None:
    assert changed.touched([path], engines=False) == members


@pytest.mark.parametrize(
    ("path", "engines"),
    [
        (f"{ENGINES}/automodel/loop.py", ["automodel"]),
        (
            f"{ENGINES}/kernels/mamba_scan.py",
            ["automodel", "clients", "evaluator", "llama_cpp", "megatron", "modelopt", "nemo_rl", "vllm_cpu"],
        ),
        ("shared/serving/src/nemotron_serving/vllm_run.py", ["vllm_cpu"]),
        ("stages/rl/engines/trl/vllm_program.py", ["vllm_cpu"]),
        ("stages/rl/engines/trl/vllm_needs.py", ["vllm_cpu"]),
        ("stages/rl/engines/trl/sampling.py", ["vllm_cpu"]),
        ("stages/eval/scoring.py", ["evaluator"]),
        ("shared/cluster/src/nemotron_cluster/backends/nemo_run.py", ["nemo_run"]),
        ("shared/app/src/nemotron_app/wording.py", ["modelopt"]),
        ("shared/app/src/nemotron_app/report/page.py", []),
    ],
)
def test_engines(changed: ModuleType, path: str, engines: list[str]) -> None:
    assert changed.touched([path], engines=True) == engines


def test_engines_are_those_of_the_script(changed: ModuleType) -> None:
    script = (ROOT / "ci" / "engine.sh").read_text()
    assert set(changed.ENGINES) == set(re.findall(r"^(\w+)\)", script, re.MULTILINE))
