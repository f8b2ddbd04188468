"""Model folders and data that do not fit their model are refused, naming the file and what differs."""

import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from packed_support import add_document, pack_row

from nemotron_data.formats.bin_idx import IndexedDataset, IndexedDatasetWriter
from nemotron_engines.rows import DocumentRows, PackedRows
from nemotron_shared.system.errors import UserError

CHOICES = SimpleNamespace(attn_implementation="sdpa", allow_reference_kernels=False)


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    from nemotron_data.tokenizers.tiny import save_tokenizer
    from nemotron_engines.modeling.build import save_random_model
    from nemotron_shared.config.schema import ModelSection

    folder = tmp_path_factory.mktemp("whole")
    save_tokenizer(folder / "tokenizer")
    save_random_model(ModelSection(architecture="super3_tiny", overrides={}), folder / "tokenizer", 7, folder / "model")
    return folder / "model"


def copy_with(whole: Path, target: Path, change) -> Path:
    """A copy of the model whose tensors, a dict of numpy arrays, `change` has edited."""
    from safetensors.numpy import load_file, save_file

    shutil.copytree(whole, target)
    tensors = load_file(target / "model.safetensors")
    change(tensors)
    save_file(tensors, target / "model.safetensors", metadata={"format": "pt"})
    return target


@pytest.mark.slow
def test_tensors_that_differ_from_the_architecture_are_counted_and_named(whole: Path, tmp_path: Path) -> None:
    from transformers import AutoConfig

    from nemotron_engines.modeling.build import load_model

    def lose(tensors: dict) -> None:
        for name in sorted(tensors)[:34]:
            del tensors[name]

    def lose_one(tensors: dict) -> None:
        del tensors[next(name for name in tensors if name.endswith("embeddings.weight"))]

    def lose_an_expert(tensors: dict) -> None:
        del tensors[next(name for name in sorted(tensors) if ".experts.1." in name)]

    def add(tensors: dict) -> None:
        tensors["model.layers.0.mixer.extra"] = np.zeros(3, np.float32)

    def reshape(tensors: dict) -> None:
        name = next(name for name in sorted(tensors) if name.endswith("in_proj.weight"))
        tensors[name] = tensors[name][:-1].copy()

    intact = load_model(whole, CHOICES)
    assert intact.config.to_dict() == AutoConfig.from_pretrained(whole).to_dict() | {
        key: intact.config.to_dict()[key] for key in ("dtype",)
    }
    for change, said in (
        (lose, r"\d+ tensors missing: "),
        (lose_one, r"1 tensors missing: .*embeddings"),
        (lose_an_expert, "of another shape: |missing: .*experts"),
        (add, "1 tensors unknown: "),
        (reshape, "1 tensors of another shape: "),
    ):
        folder = copy_with(whole, tmp_path / change.__name__, change)
        with pytest.raises(UserError, match=said) as caught:
            load_model(folder, CHOICES)
        assert str(folder) in caught.value.message and caught.value.remedy


@pytest.mark.slow
def test_files_that_cannot_be_read_are_an_error_for_the_user(whole: Path, tmp_path: Path) -> None:
    from nemotron_engines.modeling.build import load_model

    def cut(path: Path) -> None:
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])

    def garble_header(path: Path) -> None:
        path.write_bytes(b"\xff" * 16 + path.read_bytes()[16:])

    for number, (name, damage) in enumerate(
        [
            ("model.safetensors", cut),
            ("model.safetensors", garble_header),
            ("model.safetensors", Path.unlink),
            ("config.json", cut),
            ("config.json", Path.unlink),
            ("config.json", lambda path: path.write_text("[]")),
            ("config.json", lambda path: path.write_text('{"model_type": "unheard_of"}')),
            ("config.json", lambda path: path.write_text(path.read_text().replace('_size": ', '_size": -'))),
        ]
    ):  # fmt: skip
        folder = tmp_path / str(number)
        shutil.copytree(whole, folder)
        damage(folder / name)
        with pytest.raises(UserError) as caught:
            load_model(folder, CHOICES)
        assert str(folder) in caught.value.message and caught.value.remedy


@pytest.mark.slow
def test_what_counts_as_layers() -> None:
    from nemotron_engines.modeling.sizes import layers_in

    assert layers_in({"intermediate_size_per_layer": 900, "tokens_per_block": 16, "ignored_layers": ["a"] * 9}) == 0
    assert layers_in({"a": {"n_layer": 3}, "encoder_layers": 5, "layer_types": ["x"] * 7, "depth": None}) == 7
    assert layers_in({"parts": [{"depths": [2, 9]}]}) == 9


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"vocab_size": 200_000_000}, r"[\d,]+ parameters, but its weights have [\d,]+"),
        ({"hidden_size": 10_000_000}, r"[\d,]+ parameters, but its weights have [\d,]+"),
        ({"layers_block_type": ["moe"] * 5_000}, r"5,000 layers, but its weights are \d+ tensors"),
        ({"hybrid_override_pattern": "M" * 20_000}, r"20,000 layers; at most 10,000 are supported"),
        ({"model_type": "gemma3", "vision_config": {"num_hidden_layers": 10**7}}, r"10,000,000 layers; at most 10,000"),
        ({"model_type": "gemma3", "vision_config": {"num_hidden_layers": 9_999}}, r"9,999 layers, but its weights are"),
        ({"model_type": "gpt_bigcode", "hidden_size": 2, "num_attention_heads": 1, "max_position_embeddings": 300_000},
         "90,000,000,000 bytes of masks or tables, but its weights have"),
        ({"model_type": "diffllama", "num_hidden_layers": 1, "head_dim": 10**12},  # made on the CPU, whatever is asked
         r"[\d,]+ parameters, but its weights have [\d,]+"),
    ],
)  # fmt: skip
def test_sizes_beyond_the_weights_are_refused_before_they_take_memory(
    whole: Path, tmp_path: Path, fields: dict, said: str
) -> None:
    import torch

    from nemotron_engines.modeling.build import load_model

    folder = shutil.copytree(whole, tmp_path / "model")
    (folder / "config.json").write_text(json.dumps(json.loads((folder / "config.json").read_text()) | fields))
    before = torch.get_rng_state()
    with pytest.raises(UserError, match=rf"config\.json: declares {said}"):
        load_model(folder, CHOICES)
    assert torch.equal(torch.get_rng_state(), before), "nothing was drawn"


@pytest.mark.parametrize("window", [0, -1])
def test_a_window_in_which_nothing_is_seen_is_refused(tmp_path: Path, window: int) -> None:
    from zoo import write

    from nemotron_engines.modeling.build import require_tensors

    folder = write("mistral", tmp_path)
    require_tensors(folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"sliding_window": window}))
    with pytest.raises(UserError, match=rf"config\.json: sliding_window is {window}, in which no token sees any"):
        require_tensors(folder)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"num_attention_heads": 0}, "cannot build a model from it: ZeroDivisionError"),
        ({"n_groups": 0}, "cannot build a model from it: ZeroDivisionError"),
        ({"layer_norm_epsilon": -5}, "not a model's config: Validation error for field 'layer_norm_epsilon': .*-5"),
        ({"num_labels": 10**7}, "declares 10,000,000 labels; at most 100,000 are supported"),
        ({"chunk_size": 0}, "chunk_size is 0, not a number of 1 or more"),
        ({"num_experts_per_tok": 10**9}, "num_experts_per_tok is 1,000,000,000, not a number from 1 to 8"),
        ({"num_experts_per_tok": 0}, "num_experts_per_tok is 0, not a number from 1 to 8"),
        ({"n_group": 0}, "n_group is 0, not a number from 1 to 8"),
        ({"n_group": 3}, "n_group is 3, which does not divide 8 experts"),
        ({"topk_group": 2}, "topk_group is 2, not a number from 1 to 1"),
        ({"hidden_size": 10**30}, "cannot build a model from it: "),
        ({"model_type": "gemma3", "text_config": 5}, "not a model's config: "),
        ({"base_model_tp_plan": 5}, ""),
        ({"quantization_config": {"quant_method": "gptq", "bits": 4}}, "cannot build a model from it: ImportError"),
        ({"quantization_config": {"quant_method": "compressed-tensors"}}, "cannot build a model from it: ImportError"),
        ({"eos_token_id": [[1]]}, "(eos_token_id must be a token id|not a model's config)"),
    ],
)
def test_what_the_library_makes_no_model_of_names_the_config(
    whole: Path, tmp_path: Path, fields: dict, said: str
) -> None:
    from nemotron_engines.modeling.build import load_model

    folder = shutil.copytree(whole, tmp_path / "model")
    (folder / "config.json").write_text(json.dumps(json.loads((folder / "config.json").read_text()) | fields))
    with pytest.raises(UserError, match=rf"config\.json: {said}") as caught:
        load_model(folder, CHOICES)
    assert caught.value.remedy


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[1]", "not a mapping"),
        ('{"temperature": "warm"}', "temperature must be a number from 0 to 100"),
        ('{"temperature": NaN}', "temperature must be a number from 0 to 100"),
        ('{"do_sample": true, "top_p": 1.5}', "top_p must be a number from 0 to 1"),
        ('{"do_sample": "x"}', "do_sample must be true or false"),
        ('{"eos_token_id": [[1]]}', "eos_token_id must be a token id"),
        ('{"eos_token_id": {}}', "eos_token_id must be a token id"),
        ('{"eos_token_id": "x"}', "eos_token_id must be a token id"),
        ('{"max_new_tokens": "x"}', "unusable: "),
    ],
)
def test_a_generation_config_is_looked_at_before_the_weights(whole: Path, tmp_path: Path, text: str, said: str) -> None:
    from nemotron_engines.modeling.build import load_model

    folder = shutil.copytree(whole, tmp_path / "model")
    (folder / "generation_config.json").write_text(text)
    with pytest.raises(UserError, match=rf"generation_config\.json: {said}"):
        load_model(folder, CHOICES)


def test_weights_that_are_no_numbers_are_refused(whole: Path, tmp_path: Path) -> None:
    from nemotron_engines.modeling.build import load_model

    def spoil(tensors: dict) -> None:
        tensors["lm_head.weight"][5, 3] = np.nan

    def round_off(tensors: dict) -> None:
        tensors["lm_head.weight"] = tensors["lm_head.weight"].astype(np.int8)

    for change, said in (
        (spoil, r"lm_head\.weight holds NaN or infinity"),
        (
            round_off,
            r"model\.safetensors: lm_head\.weight is stored as I8, but config\.json has no quantization_config",
        ),
    ):
        folder = copy_with(whole, tmp_path / change.__name__, change)
        with pytest.raises(UserError, match=said) as caught:
            load_model(folder, CHOICES)
        assert str(folder) in caught.value.message and caught.value.remedy


@pytest.mark.parametrize("kind", ["float8_e4m3fn", "float8_e5m2"])
def test_weights_of_eight_bits_without_their_scales_are_refused(whole: Path, tmp_path: Path, kind: str) -> None:
    import torch
    from safetensors.torch import load_file, save_file

    from nemotron_engines.modeling.build import load_model, require_tensors

    folder = shutil.copytree(whole, tmp_path / "rounded")
    tensors = load_file(folder / "model.safetensors")
    tensors["lm_head.weight"] = tensors["lm_head.weight"].to(getattr(torch, kind))
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    for look in (require_tensors, lambda path: load_model(path, CHOICES)):
        with pytest.raises(
            UserError, match=r"model\.safetensors: lm_head\.weight is stored as F8_E\dM\d, but"
        ) as caught:
            look(folder)
        assert caught.value.remedy == "use the model in bfloat16 or float32"


def test_masks_that_older_models_store_are_no_weights(tmp_path: Path) -> None:
    import torch
    from safetensors.numpy import save_file

    from nemotron_engines.modeling.loaded import require_numbers

    (tmp_path / "config.json").write_text("{}")
    save_file({"layers.0.attention.bias": np.ones((1, 4), bool)}, tmp_path / "model.safetensors")
    require_numbers(tmp_path, torch.nn.Linear(2, 2))


def test_a_head_of_its_own_beside_tied_embeddings_is_refused(whole: Path, tmp_path: Path) -> None:
    from nemotron_engines.modeling.build import load_model

    folder = shutil.copytree(whole, tmp_path / "two")
    config = json.loads((folder / "config.json").read_text()) | {"tie_word_embeddings": True}
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(
        UserError, match=r"config\.json: tie_word_embeddings is true, but the weights contain a separate head"
    ):
        load_model(folder, CHOICES)


def test_ids_beyond_the_vocabulary_name_the_file_and_the_document(tmp_path: Path) -> None:
    with IndexedDatasetWriter(tmp_path / "docs", vocab_size=100) as writer:
        for first in (0, 90):
            add_document(writer, np.arange(first, first + 10))
    rows = DocumentRows([IndexedDataset(tmp_path / "docs")], 10, 2, seed=3, vocab_size=100)
    assert {int(rows[index]["input_ids"].max()) for index in range(2)} == {9, 99}
    with (tmp_path / "docs.bin").open("r+b") as file:
        file.seek(25)  # the upper byte of an id of the second document
        file.write(b"\x01")
    rows = DocumentRows([IndexedDataset(tmp_path / "docs")], 10, 2, seed=3, vocab_size=100)
    with pytest.raises(UserError, match=r"docs\.bin: document 1: token id 348 is outside .* of 100"):
        [rows[index] for index in range(2)]


def test_packed_ids_beyond_the_vocabulary_name_the_file_and_the_row() -> None:
    packed = [pack_row([([1, 2, 3], [0, 1, 1])]), pack_row([([1, 200, 3], [0, 1, 1])])]
    rows = PackedRows(packed, 2, seed=1, vocab_size=100, file=Path("train.parquet"))
    with pytest.raises(UserError, match=r"train\.parquet: row 1: token id 200 is outside(.|\n)*added tokens"):
        [rows[index] for index in range(2)]
    assert len([PackedRows(packed, 2, seed=1)[index] for index in range(2)]) == 2
