"""The keys of NVIDIA's `config/data_prep/*.yaml`, and what they are here."""

from typing import Any

from nemotron_shared.config.dialects import Dialect, Meaning, NoEffect, Settings, model_reference

SAME = (
    "text_field", "min_doc_chars", "max_doc_tokens", "pack_size", "algorithm", "parquet_row_group_size",
    "parquet_compression", "chat_template", "messages_field", "tools_field", "used_in_filter", "used_in_field",
)  # fmt: skip
SHARDS = NoEffect("files are cut by size, data_prep.shard_mb, and their number changes nothing")
HUB = NoEffect("the hub's own library downloads, and tries again")


def seed(value: Any) -> Settings:
    """Null means the run's own."""
    return {} if value is None else {"data_prep.seed": value}


KEYS: dict[str, Meaning] = {
    **{name: f"data_prep.{name}" for name in SAME},
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
    "output_dir": NoEffect("data lies in the artifact store, below run.home"),
    "config_name": NoEffect("the artifact has the name of family and stage, and a version"),
    "run.env": NoEffect("which machines run it is said where it is started"),
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
)
