"""Weights are published in the type that the base has, whatever was computed in."""

import json
from pathlib import Path

import pytest
import torch
from safetensors import safe_open

from nemotron_data.tokenizers.tiny import save_tokenizer
from nemotron_engines.modeling.build import ONLY_MADE, load_model, load_tokenizer, random_model, save_model
from nemotron_engines.modeling.loaded import change_type, type_to_save
from nemotron_shared.config.schema import ModelSection


def kinds(folder: Path) -> dict[str, str]:
    with safe_open(folder / "model.safetensors", "pt") as file:
        return {name: file.get_slice(name).get_dtype() for name in file.keys()}  # noqa: SIM118 - it is no dict


@pytest.mark.parametrize("gathered", [False, True])
def test_bfloat16_comes_out_but_where_the_models_code_asks_for_more(tmp_path: Path, gathered: bool) -> None:
    save_tokenizer(tmp_path / "tokenizer")
    section = ModelSection(architecture="super3_tiny", overrides={})
    model = random_model(section, load_tokenizer(tmp_path / "tokenizer"), 1, ONLY_MADE)
    weights = dict(model.state_dict()) if gathered else None
    change_type(model, weights, torch.bfloat16)
    save_model(model, tmp_path / "tokenizer", tmp_path / "out", weights)
    found = kinds(tmp_path / "out")
    kept = {name for name, kind in found.items() if kind == "F32"}
    assert kept == {name for name in found if name.endswith("e_score_correction_bias")} != set()
    assert set(found.values()) == {"F32", "BF16"}
    assert json.loads((tmp_path / "out" / "config.json").read_text())["dtype"] == "bfloat16"
    assert load_model(tmp_path / "out", ONLY_MADE).dtype == torch.float32  # as every training begins


def test_the_base_decides_unless_somebody_does(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"torch_dtype": "bfloat16"}')
    assert type_to_save(None, str(tmp_path)) == torch.bfloat16
    assert type_to_save("float32", str(tmp_path)) == torch.float32
    assert type_to_save(None, "") is None
    (tmp_path / "config.json").write_text("{}")
    assert type_to_save(None, str(tmp_path)) is None
