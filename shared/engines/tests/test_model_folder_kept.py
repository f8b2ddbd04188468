"""A folder that is loaded and saved again is the same model, whatever spelling its settings have."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM
from zoo import write

from nemotron_engines.modeling.build import ONLY_MADE, load_model, save_model
from nemotron_engines.modeling.generation import ends_of
from nemotron_engines.modeling.loaded import left_behind
from nemotron_shared.system.atomic import read_json
from nemotron_shared.system.errors import UserError

LONG: dict[str, dict[str, Any]] = {
    "older names": {"rope_theta": 5e5, "rope_scaling": {"type": "linear", "factor": 4.0}},
    "llama3": {"rope_theta": 5e5, "rope_scaling": {
        "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 32}},
    "yarn": {"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0,
                                 "original_max_position_embeddings": 32}},
}  # fmt: skip


def changed(file: Path, without: tuple[str, ...] = (), **values: Any) -> None:
    kept = {name: value for name, value in read_json(file).items() if name not in without}
    file.write_text(json.dumps(kept | values))


def saved_again(folder: Path) -> Path:
    model = load_model(folder, ONLY_MADE)
    save_model(model, folder, folder.with_name("again"))
    return folder.with_name("again")


@torch.no_grad()
def logits(folder: Path) -> torch.Tensor:
    """By transformers alone; positions go beyond those that the scaling begins from."""
    model = AutoModelForCausalLM.from_pretrained(folder).eval()
    return model(torch.arange(96)[None] % 50, use_cache=False).logits


@pytest.mark.parametrize("spelling", LONG)
def test_positions_are_scaled_as_the_folder_says(tmp_path: Path, spelling: str) -> None:
    folder = write("llama", tmp_path / "model")
    plain = logits(folder)
    changed(folder / "config.json", ("rope_theta", "rope_scaling", "rope_parameters"), **LONG[spelling])
    before = logits(folder)
    assert (before - plain).abs().max() > 1e-3, "the setting acts"
    assert torch.equal(logits(saved_again(folder)), before)


def test_settings_of_generation_and_end_tokens_are_kept(tmp_path: Path) -> None:
    """Those of answers too, which transformers refuses to save from a file that samples nothing."""
    folder = write("llama", tmp_path / "model")
    settings = {"eos_token_id": [0, 7], "temperature": 0.6, "top_p": 0.9, "do_sample": False, "no_repeat_ngram_size": 3}
    (folder / "generation_config.json").write_text(json.dumps(settings))
    changed(folder / "config.json", eos_token_id=5, pad_token_id=None)
    again = saved_again(folder)
    found = read_json(again / "generation_config.json")
    assert {name: found.get(name) for name in settings} == settings
    assert read_json(again / "config.json")["eos_token_id"] == 5
    assert ends_of(load_model(again, ONLY_MADE), None) == {0, 5, 7}


def test_embeddings_beyond_the_tokenizer_and_several_files_are_kept(tmp_path: Path) -> None:
    folder = write("qwen2", tmp_path / "model")
    model = AutoModelForCausalLM.from_pretrained(folder)
    model.resize_token_embeddings(512)
    model.save_pretrained(folder, max_shard_size="20KB")
    (folder / "model.safetensors").unlink(missing_ok=True)
    assert (folder / "model.safetensors.index.json").is_file()
    again = saved_again(folder)
    assert read_json(again / "config.json")["vocab_size"] == 512
    assert load_file(again / "model.safetensors")["model.embed_tokens.weight"].shape[0] == 512
    assert torch.equal(logits(again), logits(folder))


@pytest.mark.parametrize("told", [True, None])
def test_a_head_beside_the_embeddings_that_it_is_said_to_be_is_refused(tmp_path: Path, told: bool | None) -> None:
    """Also where config.json says nothing, and the architecture's default ties them: some programs take the one."""
    folder = write("gemma2", tmp_path / "model")
    changed(folder / "config.json", ("tie_word_embeddings",), **({} if told is None else {"tie_word_embeddings": told}))
    tensors = load_file(folder / "model.safetensors")
    head = tensors["model.embed_tokens.weight"].clone()
    save_file(tensors | {"lm_head.weight": head}, folder / "model.safetensors", metadata={"format": "pt"})
    load_model(folder, ONLY_MADE)  # alike: nothing is lost
    save_file(tensors | {"lm_head.weight": head + 1}, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(UserError, match="the weights contain a separate head"):
        load_model(folder, ONLY_MADE)


@pytest.mark.parametrize(("kind", "place"), [("deepseek_v3", "model.layers.61"), ("nemotron_h", "mtp.layers.0")])
def test_a_block_that_is_not_trained_is_not_promised(tmp_path: Path, kind: str, place: str) -> None:
    """transformers drops it without a word, and saves a config that still counts it."""
    folder = write(kind, tmp_path / "model")
    changed(folder / "config.json", num_nextn_predict_layers=1)
    assert left_behind(folder, load_model(folder, ONLY_MADE)) is None, "there is none"
    weights = load_file(folder / "model.safetensors")
    weights |= {f"{place}.eh_proj.weight": torch.zeros(32, 64), f"{place}.enorm.weight": torch.ones(32)}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    model = load_model(folder, ONLY_MADE)
    assert left_behind(folder, model) == f"2 tensors ({place})"
    save_model(model, folder, tmp_path / "again")
    assert not read_json(tmp_path / "again/config.json")["num_nextn_predict_layers"]


def test_masks_of_older_models_are_nothing_that_is_lost(tmp_path: Path) -> None:
    folder = write("gpt2", tmp_path / "model")
    weights = load_file(folder / "model.safetensors")
    weights["transformer.h.0.attn.bias"] = torch.ones(1, 1, 8, 8)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    assert left_behind(folder, load_model(folder, ONLY_MADE)) is None
