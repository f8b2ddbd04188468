"""`nemotron export --dtype` leaves in float32 what a folder in 16 bits keeps in float32."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from zoo import write

from nemotron_serving.layouts import DTYPES, Layout

WIDE = ("A_log", ".D", "e_score_correction_bias", "norm_f.weight")
"""Ends of the names of what one of these folders keeps in float32; of a folder in float32, the last one is cast."""


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("of_16_bits", [True, False])
def test_a_tensor_keeps_more_bits_than_the_others_have(tmp_path: Path, dtype: str, of_16_bits: bool) -> None:
    file = write("nemotron_h", tmp_path) / "model.safetensors"
    if of_16_bits:
        cast = {name: one if name.endswith(WIDE) else one.bfloat16() for name, one in load_file(file).items()}
        save_file(cast, file, metadata={"format": "pt"})
    Layout(("transformers",), dtype, adapter=False, quantize=None).copy()(file, tmp_path / "out.safetensors")
    before, after = load_file(file), load_file(tmp_path / "out.safetensors")
    kept = {name for name in before if name.endswith(WIDE if of_16_bits else WIDE[:-1])}
    assert {name.rpartition(".")[2] for name in kept} >= {"A_log", "D", "e_score_correction_bias"}
    for name, one in after.items():
        wanted = torch.float32 if name in kept else getattr(torch, dtype)
        assert one.dtype == wanted and torch.equal(one, before[name].to(wanted)), name
