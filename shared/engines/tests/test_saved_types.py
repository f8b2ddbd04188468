"""Weights are published in the type that the base has, whatever was computed in."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from zoo import write

from nemotron_data.tokenizers.tiny import save_tokenizer
from nemotron_engines.modeling.build import ONLY_MADE, load_model, load_tokenizer, random_model, save_model
from nemotron_engines.modeling.loaded import change_type, own_types, type_to_save
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
    change_type(model, weights, torch.bfloat16, {})
    save_model(model, tmp_path / "tokenizer", tmp_path / "out", weights)
    found = kinds(tmp_path / "out")
    kept = {name for name, kind in found.items() if kind == "F32"}
    ends = ("e_score_correction_bias", ".A_log", ".D")
    assert kept == {name for name in found if name.endswith(ends)}
    assert {name.rpartition(".")[2] for name in kept} == {"e_score_correction_bias", "A_log", "D"}
    assert set(found.values()) == {"F32", "BF16"}
    assert json.loads((tmp_path / "out" / "config.json").read_text())["dtype"] == "bfloat16"
    assert load_model(tmp_path / "out", ONLY_MADE).dtype == torch.float32  # as every training begins


def mixed(folder: Path, kind: str) -> dict[str, str]:
    """A folder in bfloat16 whose decay rates, skips, corrections and norms are float32; returns its types."""
    write(kind, folder)
    tensors = load_file(folder / "model.safetensors")
    wide = ("A_log", ".D", "e_score_correction_bias", "norm_f.weight", "input_layernorm.weight")
    save_file(
        {name: one + 1e-4 if name.endswith(wide) else one.bfloat16() for name, one in tensors.items()},
        folder / "model.safetensors",
        metadata={"format": "pt"},
    )
    return kinds(folder)


@pytest.mark.parametrize("kind", ["nemotron_h", "mamba2", "deepseek_v3", "llama"])
def test_each_tensor_is_published_in_the_type_that_it_had(tmp_path: Path, kind: str) -> None:
    """Whatever config.json says of all of them: here it says float32."""
    before = mixed(tmp_path / "base", kind)
    assert {"F32", "BF16"} == set(before.values())
    model = load_model(tmp_path / "base", ONLY_MADE)
    base = str(tmp_path / "base")
    change_type(model, None, type_to_save(None, base) or torch.float32, own_types(base))
    save_model(model, tmp_path / "base", tmp_path / "out")
    assert kinds(tmp_path / "out") == before
    assert json.loads((tmp_path / "out" / "config.json").read_text())["dtype"] == "bfloat16"
    stored = load_file(tmp_path / "base" / "model.safetensors")
    assert all(
        torch.equal(one, stored[name]) for name, one in load_file(tmp_path / "out" / "model.safetensors").items()
    )


@pytest.mark.parametrize("kind", ["nemotron_h", "mamba2"])
def test_a_model_that_is_frozen_in_bfloat16_keeps_its_decay_rates(tmp_path: Path, kind: str) -> None:
    """transformers rounds them; a decay rate is the exponential of what it rounds."""
    mixed(tmp_path, kind)
    model: Any = load_model(tmp_path, ONLY_MADE, dtype=torch.bfloat16)
    stored = {name.partition(".")[2]: one for name, one in load_file(tmp_path / "model.safetensors").items()}
    found = {name.partition(".")[2]: one for name, one in model.named_parameters() if name.endswith((".A_log", ".D"))}
    assert found and all(torch.equal(one, stored[name]) for name, one in found.items())
    ids = torch.arange(8)[None]
    assert model.train()(input_ids=ids, labels=ids, use_cache=False).loss.isfinite()
    with torch.autocast("cpu", torch.bfloat16):
        model(input_ids=ids, labels=ids, use_cache=False).loss.backward()


def test_the_base_decides_unless_somebody_does(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"torch_dtype": "bfloat16"}')
    assert type_to_save(None, str(tmp_path)) == torch.bfloat16
    assert type_to_save("float32", str(tmp_path)) == torch.float32
    assert type_to_save(None, "") is None
    save_file({"one": torch.zeros(2, dtype=torch.float16)}, tmp_path / "model.safetensors")
    assert type_to_save(None, str(tmp_path)) == torch.float16
    (tmp_path / "model.safetensors").unlink()
    (tmp_path / "config.json").write_text("{}")
    assert type_to_save(None, str(tmp_path)) is None
