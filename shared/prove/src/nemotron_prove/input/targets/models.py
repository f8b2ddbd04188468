"""Folders of models: config.json, weights and their index, tokenizers."""

import json
import math
import struct
from functools import cache
from pathlib import Path
from typing import Any

from nemotron_data.tokenizers.folder import TokenizerFolder
from nemotron_data.tokenizers.tiny import save_tokenizer
from nemotron_engines.modeling.facts import differences, parameters_in
from nemotron_prove.input.second import fault_of, is_count, json_value, require
from nemotron_prove.input.target import Files, Target
from nemotron_shared.runtime.models.folder import config_of, require_loadable
from nemotron_shared.runtime.models.weights import require_whole

CONFIG = {
    "model_type": "llama",
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 512,
    "architectures": ["LlamaForCausalLM"],
    "torch_dtype": "bfloat16",
    "layers_block_type": ["mamba", "attention"],
}
SIZES = {
    "F64": 8,
    "F32": 4,
    "F16": 2,
    "BF16": 2,
    "I64": 8,
    "I32": 4,
    "I16": 2,
    "I8": 1,
    "U8": 1,
    "BOOL": 1,
    "F8_E4M3": 1,
    "F8_E5M2": 1,
    "U16": 2,
    "U32": 4,
    "U64": 8,
}
FIELDS = {"hidden_size": 64, "hybrid_override_pattern": "M*", "num_attention_heads": 4}


def _safetensors(*names: str) -> bytes:
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    for number, name in enumerate(names):
        header[name] = {"dtype": "F32", "shape": [2, 3], "data_offsets": [24 * number, 24 * number + 24]}
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + bytes(24 * len(names))


def _weights() -> list[Files]:
    names = [f"model.layers.{layer}.norm.weight" for layer in (0, 1)]
    index = {
        "metadata": {"total_size": 48},
        "weight_map": {name: f"model-{n}.safetensors" for n, name in enumerate(names)},
    }
    several = {f"model-{number}.safetensors": _safetensors(name) for number, name in enumerate(names)}
    config = json.dumps(CONFIG).encode()
    return [
        {"config.json": config, "model.safetensors": _safetensors(*names)},
        {"config.json": config, "model.safetensors.index.json": json.dumps(index).encode(), **several},
    ]


def _require(folder: Path, files: Files) -> dict[str, Any]:
    config = config_of(folder)
    require_loadable("model", config, trusted=False)
    require_whole("model", folder, config)
    parameters_in(folder)
    differences(config, FIELDS)
    return config


def _weights_fault(files: Files, made: object) -> str | None:
    def read() -> None:
        if "config.json" in files:
            value = json_value(files["config.json"], strict=False)
            require(isinstance(value, dict) and isinstance(value.get("model_type"), str | None), "config.json is none")
        index = files.get("model.safetensors.index.json")
        wanted = json_value(index, strict=False)["weight_map"] if index is not None else {}
        names = sorted({*wanted.values()}) if wanted else [name for name in files if name.endswith(".safetensors")]
        there = {name: _tensors(files[name]) for name in names}
        require(
            all(tensor in there[file] for tensor, file in wanted.items()), "a tensor that its index names is missing"
        )
        require(not wanted or {*wanted} >= set().union(*there.values()), "a tensor that its index does not name")

    return fault_of(read)


def _tensors(content: bytes) -> set[str]:
    """A file of safetensors by its description: header, dtypes, shapes, and offsets that leave no gap."""
    length = int.from_bytes(content[:8], "little")
    require(len(content) >= 8 + length, "a header beyond the file")
    header = json_value(content[8 : 8 + length])
    require(isinstance(header, dict), "a header that is no object")
    at, tensors = 0, {name: one for name, one in header.items() if name != "__metadata__"}
    for one in sorted(tensors.values(), key=lambda one: str(one["data_offsets"]) and one["data_offsets"]):
        require(isinstance(one["data_offsets"], list) and len(one["data_offsets"]) == 2, "offsets that are no pair")
        low, high = one["data_offsets"]
        require(all(map(is_count, (low, high, *one["shape"]))), "a shape or an offset that is no count")
        require(low == at and high >= low, "offsets that leave a gap or overlap")
        require(len(one["shape"]) <= 64 and max(one["shape"], default=0) < 2**63, "a shape that no tensor has")
        require(math.prod(one["shape"]) < 2**63, "a shape that no tensor has")
        if one["dtype"] in SIZES:  # others may be newer than both readers
            require(high - low == SIZES[one["dtype"]] * math.prod(one["shape"]), "offsets that do not fit the shape")
        at = high
    require(len(content) == 8 + length + at, "a file of another length")
    return {*tensors}


def _config(folder: Path, files: Files) -> dict[str, Any]:
    config = config_of(folder)
    require_loadable("model", config, trusted=False)
    differences(config, FIELDS)
    return config


def _config_fault(files: Files, made: object) -> str | None:
    def read() -> None:
        value = json_value(files["config.json"], strict=False) if "config.json" in files else {}
        require(isinstance(value, dict), "config.json is no object")
        require(isinstance(value.get("model_type"), str | None), "a model_type that is no text")

    return fault_of(read)


@cache
def _tokenizer() -> list[Files]:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        save_tokenizer(Path(folder))
        made = {path.name: path.read_bytes() for path in sorted(Path(folder).iterdir())}
    value = json.loads(made["tokenizer.json"])
    value["model"]["merges"] = value["model"]["merges"][:4]
    keep = {text for pair in value["model"]["merges"] for text in ("".join(pair), *pair)}
    vocab = value["model"]["vocab"]
    value["model"]["vocab"] = {text: number for text, number in vocab.items() if number < 40 or text in keep}
    return [{**made, "tokenizer.json": json.dumps(value).encode()}, made]


def _open(folder: Path, files: Files) -> TokenizerFolder:
    tokenizer = TokenizerFolder(folder)
    tokenizer.special_ids()
    assert all(
        tokenizer.special_text(role) is None or tokenizer.special_text(role) for role in ("bos_token", "eos_token")
    )
    tokenizer.chat_template()
    tokenizer.tokenizer.encode("What is 3+4? é").ids  # noqa: B018
    assert tokenizer.vocab_size >= 0
    return tokenizer


def _tokenizer_fault(files: Files, made: object) -> str | None:
    def read() -> None:
        assert isinstance(made, TokenizerFolder)
        value = json_value(files["tokenizer.json"], strict=False)
        vocab = value["model"].get("vocab")
        require(isinstance(vocab, dict | list) and vocab, "no vocabulary")
        if "tokenizer_config.json" in files:
            settings = json_value(files["tokenizer_config.json"], strict=False)
            require(isinstance(settings, dict), "tokenizer_config.json is no object")
            for role in ("bos_token", "eos_token", "pad_token"):
                token = settings.get(role)
                text = token.get("content") if isinstance(token, dict) else token
                require(text is None or (isinstance(text, str) and text), "a special token that is no text")

    return fault_of(read)


WORDS = (
    "model_type",
    "auto_map",
    "data_offsets",
    "dtype",
    "shape",
    "BF16",
    "../x",
    "model.layers.0.norm.weight",
    "a--b",
)
TARGETS = (
    Target(
        "model_config",
        "config.json",
        lambda: [{"config.json": json.dumps(CONFIG).encode()}],
        _config,
        _config_fault,
        WORDS,
        share=4,
    ),
    Target("weights", "safetensors and their index", _weights, _require, _weights_fault, WORDS, share=1),
    Target(
        "tokenizer",
        "folders of tokenizers",
        _tokenizer,
        _open,
        _tokenizer_fault,
        ("eos_token", "content", "<s>", "model", "vocab", "merges"),
        share=0.2,
    ),
)
