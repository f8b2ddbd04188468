"""Translate the keys of NVIDIA's `config/data_prep/*.yaml` to ours."""

from typing import Any

from nemotron_shared.config.translation import Dialect, Meaning, NoEffect, Settings, Whole, model_reference

SAME = (
    "text_field", "min_doc_chars", "max_doc_tokens", "pack_size", "algorithm", "parquet_row_group_size",
    "parquet_compression", "messages_field", "tools_field", "used_in_filter", "used_in_field",
)  # fmt: skip
CHATS = {
    "pack_size", "algorithm", "parquet_row_group_size", "parquet_compression", "chat_template", "messages_field",
    "tools_field", "used_in_filter", "used_in_field", "train_ratio", "valid_ratio", "test_ratio",
}  # fmt: skip
"""Keys that only chat preparation has."""
TEXT = {"text_field", "min_doc_chars", "valid_shards", "test_shards"}
"""Keys that only text preparation has."""
SHARDS = NoEffect("files are cut by size, data_prep.shard_mb, and their number changes nothing")
HUB = NoEffect("the hub's own library downloads, and tries again")


TEMPLATES: dict[str, str | None] = {"super3": "nano3", "ultra3": "nano3", "lightning35": None}
"""NVIDIA's template names: Super and Ultra use Nano's, Lightning's is in its model's folder."""
# Defaults of NVIDIA's preparation that differ from ours.
SILENT: Settings = {"tokenizer.add_bos": False, "tokenizer.add_eos": True}
SILENT_CHATS = SILENT | {
    "pack_size": 4096, "algorithm": "first_fit_shuffle", "parquet_row_group_size": 1000, "parquet_compression": "zstd",
    "train_ratio": 0.98, "valid_ratio": 0.01, "test_ratio": 0.01, "chat_template": "nano3",
    "messages_field": "messages", "tools_field": "tools", "used_in_filter": None, "used_in_field": "used_in",
    "max_doc_tokens": None, "sample": None,
}  # fmt: skip
SILENT_TEXT = SILENT | {"text_field": "text", "min_doc_chars": None, "max_doc_tokens": None, "sample": None}


def template(value: Any) -> Settings:
    """Our setting for one of NVIDIA's template names."""
    return {"data_prep.chat_template": TEMPLATES.get(value, value)}


def whole(content: Settings, name: str) -> Whole:
    """NVIDIA's defaults for keys that a file does not set: for chats or text; problems have none."""
    flat = {key for key in content if not isinstance(content[key], dict)}
    flat |= {f"tokenizer.{key}" for key in content.get("tokenizer") or {}}
    if "tokenizer" not in content and not (CHATS | TEXT) & flat:
        return Whole({})
    silent = SILENT_CHATS if CHATS & flat else SILENT_TEXT
    settings: Settings = {}
    for key, value in silent.items():
        if key not in flat:
            settings |= DATA_PREP.settings(key, value)
    theirs = content.get("chat_template")
    here = TEMPLATES.get(theirs) or "the one in the model's folder"
    notes = [f"chat_template {theirs} is {here}"] if theirs in TEMPLATES else []
    return Whole(settings, notes)


def seed(value: Any) -> Settings:
    """Null means the run's own seed."""
    return {} if value is None else {"data_prep.seed": value}


KEYS: dict[str, Meaning] = {
    **{name: f"data_prep.{name}" for name in SAME},
    "chat_template": template,
    "blend_path": "data_prep.source",
    "tokenizer.model": lambda value: {"data_prep.tokenizer.model": model_reference(value)},
    "tokenizer.add_bos": "data_prep.tokenizer.add_bos",
    "tokenizer.add_eos": "data_prep.tokenizer.add_eos",
    "train_ratio": "data_prep.split.train",
    "valid_ratio": "data_prep.split.valid",
    "test_ratio": "data_prep.split.test",
    "sample": "data_prep.sample",
    "sample_seed": NoEffect("a sample is the first rows of each file's share, whatever the seed"),
    "seed": seed,
    "force": "run.force",
    "num_shards": SHARDS,
    "valid_shards": NoEffect("data_prep.split says how much is for validation"),
    "test_shards": NoEffect("data_prep.split says how much is for testing"),
    "output_dir": NoEffect("data is in the artifact store, below run.home"),
    "config_name": NoEffect("the artifact has the name of family and stage, and a version"),
    "run.env": NoEffect("the command that starts a run names the machines"),
    "plan": NoEffect("data_prep.workers says how many processes share the work"),
    "download": HUB,
    "tokenization": NoEffect("data_prep.workers says how many processes share the work"),
    "observability": NoEffect("progress is shown by time, and counts are in stats.json"),
}

DATA_PREP = Dialect(
    library="NVIDIA's data preparation",
    engine=None,
    is_its=lambda content: bool({"blend_path", "num_shards", "output_dir"} & content.keys()),
    keys=KEYS,
    sections=frozenset(),
    rest=None,
    whole=whole,
)
