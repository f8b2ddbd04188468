"""Weights are read and written part by part, and 8-bit weights without their scales are refused."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from zoo import write

from nemotron_engines.modeling import stored as module
from nemotron_engines.modeling.build import require_tensors
from nemotron_engines.modeling.loaded import require_kept_scales
from nemotron_engines.modeling.stored import rewrite, stored, stored_in
from nemotron_shared.models.scales import FLOATS
from nemotron_shared.system.errors import UserError

NAME = "model.layers.0.mlp.up_proj.weight"
SMALL = torch.float8_e4m3fn


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(module, "AT_ONCE", 8)
    draw = torch.Generator().manual_seed(1)
    tensors = {"b": torch.randn(7, 5, generator=draw), "a": torch.tensor(3.5), "none": torch.zeros(0, 4),
               "half": torch.randn(3, generator=draw).half(), "ids": torch.arange(4)}  # fmt: skip
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    return tmp_path / "model.safetensors"


def test_parts_are_the_tensor(file: Path) -> None:
    whole = load_file(file)
    for name, tensor in stored(file).items():
        parts = list(tensor.parts())
        assert torch.equal(torch.cat([whole[name][:0], *parts]) if tensor.shape else parts[0], whole[name])
        assert all(part.numel() <= 8 for part in parts)
    assert torch.equal(stored(file)["b"].values(slice(2, 4)), whole["b"][2:4])


def test_a_file_in_another_type_is_what_the_library_would_cast(file: Path, tmp_path: Path) -> None:
    target = tmp_path / "other.safetensors"
    rewrite(file, target, lambda tensor: "BF16" if tensor.dtype in FLOATS else tensor.dtype)
    before, after = load_file(file), load_file(target)
    assert before.keys() == after.keys()
    for name, value in before.items():
        wanted = value.bfloat16() if value.is_floating_point() else value
        assert torch.equal(after[name], wanted)


def test_values_beyond_a_type_are_refused(tmp_path: Path) -> None:
    save_file({"large": torch.full((3,), 1e6)}, tmp_path / "model.safetensors")
    with pytest.raises(UserError, match="large holds numbers beyond the range of F16"):
        rewrite(tmp_path / "model.safetensors", tmp_path / "other", lambda tensor: "F16")
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize(
    ("scales", "method", "said"),
    [
        ([], "fp8", f"{NAME} is stored as F8_E4M3, and its scale is missing: {NAME}_scale"),
        ([f"{NAME}_scale"], "modelopt", "transformers would drop the scales of 1 tensors of few bits"),
        ([f"{NAME}_scale"], None, "transformers would drop the scales"),
        ([f"{NAME}_scale_inv"], "fp8", None),
    ],
)
def test_scales_that_are_lost_or_would_be_are_refused(
    tmp_path: Path, scales: list[str], method: str | None, said: str | None
) -> None:
    tensors = {NAME: torch.ones(4, 4).to(SMALL), **{scale: torch.ones(()) for scale in scales}}
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    told = {"model_type": "llama", "quantization_config": {"quant_method": method}}
    (tmp_path / "config.json").write_text(json.dumps(told))
    assert stored_in(tmp_path)[NAME].values().dtype == SMALL
    if said is None:
        require_kept_scales(tmp_path)
        return
    with pytest.raises(UserError) as refused:
        require_kept_scales(tmp_path)
    assert said in str(refused.value)
    with pytest.raises(UserError, match="scale"):  # before a training loads it
        require_tensors(tmp_path)


def test_a_method_that_the_library_does_not_know_is_refused_for_whole_weights_too(tmp_path: Path) -> None:
    """It would be published with the weights that were trained."""
    file = write("llama", tmp_path / "model") / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"quantization_config": {"quant_method": "bananas"}}))
    with pytest.raises(UserError, match=r"config\.json: transformers does not know the quant_method bananas"):
        require_tensors(file.parent)


MEMORY = """
import resource, sys
from pathlib import Path
from nemotron_engines.modeling.loaded import require_finite
from nemotron_engines.modeling.stored import rewrite
def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (2**20 if sys.platform == "darwin" else 2**10)
before, file = peak(), Path(sys.argv[1])
require_finite(file)
rewrite(file, file.with_name("other"), lambda tensor: "BF16")
print(peak() - before)
"""


def test_a_large_file_is_never_in_memory(tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    save_file({f"layer.{number}": torch.ones(2**24) for number in range(4)}, file, metadata={"format": "pt"})  # 268 MB
    command = [sys.executable, "-c", MEMORY, str(file)]
    grown = float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    assert grown < 60  # MB
