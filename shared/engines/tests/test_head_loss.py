"""The loss in chunks against the loss over all logits: values and gradients."""

import pytest
import torch
from transformers import NemotronHConfig, NemotronHForCausalLM

from nemotron_engines.modeling import head_loss

torch.set_num_threads(1)


def small_model() -> NemotronHForCausalLM:
    torch.manual_seed(0)
    config = NemotronHConfig(
        hybrid_override_pattern="*-", hidden_size=16, vocab_size=32, num_attention_heads=2, num_key_value_heads=1,
        head_dim=8, intermediate_size=16,
    )  # fmt: skip
    return NemotronHForCausalLM._from_config(config, attn_implementation="sdpa").train()


def batch() -> dict[str, torch.Tensor]:
    random = torch.Generator().manual_seed(1)
    ids = torch.randint(0, 32, (2, 9), generator=random)
    labels = torch.where(torch.rand(2, 9, generator=random) < 0.4, -100, ids)
    return {"input_ids": ids, "labels": labels, "shift_labels": labels}


@pytest.mark.parametrize("autocast", [False, True], ids=["float32", "mixed"])
@pytest.mark.parametrize("count", [None, 11])
def test_loss_and_gradients_are_those_of_all_logits(monkeypatch, autocast, count):
    monkeypatch.setattr(head_loss, "LARGE", 0)
    monkeypatch.setattr(head_loss, "CHUNK", 32 * 4)  # four rows at a time
    found = []
    for chunked in (False, True):
        model, inputs = small_model(), batch()
        if chunked:
            inputs = head_loss.chunk_head_loss(model, lambda given: given)(inputs)
            assert len(inputs["head_targets"]) == (inputs["labels"] != -100).sum() > 4
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            loss = model(**inputs, use_cache=False, **({} if count is None else {"num_items_in_batch": count})).loss
        loss.backward()
        found.append({"loss": loss.detach(), **{name: p.grad for name, p in model.named_parameters()}})
    for name, expected in found[0].items():
        assert (found[1][name] - expected).norm() <= (2e-2 if autocast else 1e-5) * expected.norm(), name


def test_few_logits_and_validation_are_computed_as_usual(monkeypatch):
    model = small_model()
    collate = head_loss.chunk_head_loss(model, lambda given: given)
    assert collate(batch()).keys() == batch().keys()
    monkeypatch.setattr(head_loss, "LARGE", 0)
    inputs = collate(batch())
    assert model(**inputs).logits is None
    assert model.eval()(**inputs).logits.shape == (2, 9, 32)


def test_a_frozen_head_has_no_gradient(monkeypatch):
    monkeypatch.setattr(head_loss, "LARGE", 0)
    model = small_model()
    model.lm_head.requires_grad_(False)
    model(**head_loss.chunk_head_loss(model, lambda given: given)(batch())).loss.backward()
    assert model.lm_head.weight.grad is None
    assert model.model.embeddings.weight.grad.abs().sum() > 0
