"""What the translation to Megatron-Bridge does without Bridge: blends, versions, settings that need a GPU."""

from importlib.metadata import PackageNotFoundError
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from packed_support import add_document

from nemotron_data.formats.bin_idx import IndexedDatasetWriter, write_blend
from nemotron_engines.megatron_bridge import settings as bridge
from nemotron_engines.megatron_bridge.translate import blend_per_split
from nemotron_engines.stand_ins.megatron_settings import switch_off
from nemotron_shared.system.errors import UserError


def shard(folder: Path, name: str) -> str:
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    with IndexedDatasetWriter(folder / name, vocab_size=512) as writer:
        add_document(writer, np.array([5, 6, 7], np.uint16))
    return name


def test_a_blend_becomes_complete_prefixes_and_weights_per_split(tmp_path: Path) -> None:
    web, books = shard(tmp_path, "train/web"), shard(tmp_path, "train/books")
    write_blend(tmp_path / "blend.json", {"train": [(0.7, web), (0.3, books)], "valid": [], "test": []})
    train, valid, test = blend_per_split(tmp_path / "blend.json")
    assert train == ([str(tmp_path / web), str(tmp_path / books)], [0.7, 0.3])
    assert (valid, test) == (None, None)


def test_a_blend_without_training_data_is_refused(tmp_path: Path) -> None:
    write_blend(tmp_path / "blend.json", {"train": [], "valid": [(1.0, shard(tmp_path, "valid/web"))], "test": []})
    with pytest.raises(UserError, match="the train split is empty"):
        blend_per_split(tmp_path / "blend.json")


def _versions(monkeypatch: pytest.MonkeyPatch, found: dict[str, str]) -> None:
    def version(name: str) -> str:
        if name not in found:
            raise PackageNotFoundError(name)
        return found[name]

    monkeypatch.setattr(bridge, "version", version)


def test_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    _versions(monkeypatch, bridge.TRIED)
    assert bridge.untried() is None
    _versions(monkeypatch, {"megatron-core": "0.20.0", "megatron-bridge": "0.7.0"})
    assert "megatron-bridge 0.7.0 is installed; this engine was tested with" in (bridge.untried() or "")


def test_settings_of_transformer_engine_are_switched_off_and_named() -> None:
    model = SimpleNamespace(apply_rope_fusion=True, cuda_graph_impl="none", moe_token_dispatcher_type="flex",
                            moe_flex_dispatcher_backend="deepep", hidden_size=64)  # fmt: skip
    optimizer = SimpleNamespace(exp_avg_dtype=torch.bfloat16, main_params_dtype=torch.float32)
    container = SimpleNamespace(model=model, optimizer=optimizer, rng=SimpleNamespace(), comm_overlap=None,
                                mixed_precision=SimpleNamespace(fp8="hybrid", fp8_recipe="tensorwise"))  # fmt: skip
    assert switch_off(container) == [
        "model.apply_rope_fusion",
        "optimizer.exp_avg_dtype",
        "mixed_precision.fp8",
        "model.moe_token_dispatcher_type",
        "model.moe_flex_dispatcher_backend",
    ]
    assert (model.moe_token_dispatcher_type, model.apply_rope_fusion, model.hidden_size) == ("alltoall", False, 64)
    assert switch_off(container) == []
