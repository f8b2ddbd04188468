"""Attention by documents against attention with transformers' mask, with torch's kernel played by a loop."""

import pytest
import torch
from torch.nn.attention import varlen
from torch.nn.functional import scaled_dot_product_attention
from transformers import NemotronHConfig, NemotronHForCausalLM

from nemotron_engines.kernels import packed_attention
from nemotron_engines.modeling import build
from nemotron_engines.modeling.packed import packed_inputs
from nemotron_shared.config.schema import ModelLoadingEngine

torch.set_num_threads(1)
CALLS = []


def one_by_one(query, key, value, begins, _begins, longest, _longest, *, scale, window_size):
    """What torch's kernel computes, which there is for GPUs only."""
    CALLS.append(longest)
    assert window_size == (-1, 0), "causal"
    sizes = begins.diff().tolist()
    parts = zip(*(one.split(sizes) for one in (query, key, value)), strict=True)
    done = [
        scaled_dot_product_attention(*(o.transpose(0, 1) for o in part), is_causal=True, scale=scale) for part in parts
    ]
    return torch.cat([one.transpose(0, 1) for one in done])


def small_model() -> NemotronHForCausalLM:
    torch.manual_seed(0)
    config = NemotronHConfig(
        hybrid_override_pattern="*-*", hidden_size=16, vocab_size=32, num_attention_heads=4, num_key_value_heads=2,
        head_dim=8, intermediate_size=16,
    )  # fmt: skip
    return NemotronHForCausalLM._from_config(config, attn_implementation=packed_attention.register_packed_attention())


def batch() -> dict[str, torch.Tensor]:
    ids = torch.randint(0, 32, (2, 12), generator=torch.Generator().manual_seed(1))
    return {"input_ids": ids, **packed_inputs([[0, 5, 6], [0, 7]], 12)}


def test_documents_are_those_of_the_positions():
    found = packed_attention.document_inputs(batch()["position_ids"])
    assert found["document_bounds"].tolist() == [0, 5, 6, 12, 19, 24]
    assert found["document_bounds"].dtype == torch.int32
    assert found["longest_document"] == 7


def test_results_are_those_with_a_mask(monkeypatch):
    monkeypatch.setattr(varlen, "varlen_attn", one_by_one)
    monkeypatch.setattr(packed_attention, "HALF", (torch.float32,))  # to compare without rounding
    CALLS.clear()
    model = small_model().eval()
    expected = model(**batch(), use_cache=False).logits
    collate = packed_attention.attend_by_document(model, lambda given: given)
    assert not CALLS
    found = model(**collate(batch()), use_cache=False).logits
    assert CALLS == [7, 7]
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("wanted", ["sdpa", "eager"])
def test_another_attention_stays(wanted):
    model = small_model()
    model.set_attn_implementation(wanted)
    assert packed_attention.attend_by_document(model, packed_inputs) is packed_inputs


@pytest.mark.parametrize(
    ("version", "experts", "attention"),
    [
        ("2.11.0+cu130", "grouped_mixed_precision", packed_attention.NAME),
        ("2.12.0a0+nv", "grouped_mixed_precision", packed_attention.NAME),
        ("2.10.1", "grouped_mm", "sdpa"),
    ],
)
def test_an_older_torch_keeps_what_transformers_has(monkeypatch, capsys, version, experts, attention):
    for name in ("fuse_norms", "install_kernels"):
        monkeypatch.setattr(build, name, lambda *_: None)
    monkeypatch.setattr(build.torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(build.torch, "__version__", version)
    engine = ModelLoadingEngine(name="x", device="auto", attn_implementation="sdpa", allow_reference_kernels=True)
    config = build.random_of(small_model().config, 0, engine).config
    assert (config._experts_implementation, config._attn_implementation) == (experts, attention)
    assert ("need torch 2.11 or later" in capsys.readouterr().err) == (experts == "grouped_mm")


def test_float32_stays_with_the_mask(monkeypatch):
    monkeypatch.setattr(varlen, "varlen_attn", one_by_one)
    CALLS.clear()
    model = small_model().eval()
    expected = model(**batch(), use_cache=False).logits
    found = model(**packed_attention.attend_by_document(model, lambda given: given)(batch()), use_cache=False).logits
    assert torch.equal(found, expected)
    assert not CALLS
