"""The loss in chunks against the loss over all logits: values and gradients."""

from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from nemotron_engines.estimate.counted import counted
from nemotron_engines.modeling import head_loss
from nemotron_engines.modeling.packed import keep_apart, packed_inputs
from nemotron_engines.transformers.supervised import losses_of_rows

torch.set_num_threads(1)


SIZES = {"hidden_size": 16, "vocab_size": 32, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8,
         "intermediate_size": 16, "pad_token_id": 0}  # fmt: skip
MODELS: dict[str, dict[str, Any]] = {
    "nemotron_h": {"hybrid_override_pattern": "*-"},
    "llama": {"num_hidden_layers": 1, "tie_word_embeddings": True},
    "qwen3_moe": {"num_hidden_layers": 1, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 8},
}


def small_model(kind: str = "nemotron_h", **more: Any) -> Any:
    torch.manual_seed(0)
    config = AutoConfig.for_model(kind, **SIZES | MODELS.get(kind, {"num_hidden_layers": 1}) | more)
    return AutoModelForCausalLM.from_config(config).train()


@pytest.fixture
def few_at_once(monkeypatch):
    """Chunks of four rows, whatever their size."""
    monkeypatch.setitem(head_loss.LARGE, "cpu", 0)
    monkeypatch.setitem(head_loss.CHUNK, "cpu", 32 * 4)


def batch() -> dict[str, torch.Tensor]:
    random = torch.Generator().manual_seed(1)
    ids = torch.randint(0, 32, (2, 9), generator=random)
    labels = torch.where(torch.rand(2, 9, generator=random) < 0.4, -100, ids)
    return {"input_ids": ids, "labels": labels, "shift_labels": labels}


@pytest.mark.parametrize("autocast", [False, True], ids=["float32", "mixed"])
@pytest.mark.parametrize("count", [None, 11])
@pytest.mark.parametrize("kind", MODELS)
def test_loss_and_gradients_are_those_of_all_logits(few_at_once, kind, autocast, count):
    found = []
    for chunked in (False, True):
        model, inputs = small_model(kind), batch()
        if chunked:
            inputs = head_loss.chunk_head_loss(model, lambda given: given)(inputs)
            assert len(inputs["head_targets"]) == (inputs["labels"] != -100).sum() > 4
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            loss = model(**inputs, use_cache=False, **({} if count is None else {"num_items_in_batch": count})).loss
        loss.backward()
        found.append({"loss": loss.detach(), **{name: p.grad for name, p in model.named_parameters()}})
    for name, expected in found[0].items():
        assert (found[1][name] - expected).norm() <= (2e-2 if autocast else 1e-5) * expected.norm(), name


@pytest.mark.parametrize("kind", MODELS)
def test_a_validation_has_the_losses_of_all_logits(few_at_once, kind):
    model, inputs = small_model(kind).eval(), batch()
    inputs["labels"][1] = -100  # a row of which nothing is trained
    with torch.no_grad():
        plain = model(**inputs, use_cache=False)
        chunked = model(**head_loss.chunk_head_loss(model, lambda given: given)(inputs), use_cache=False)
    assert chunked.logits.shape == (2, 2)
    expected = losses_of_rows(plain.logits, inputs["labels"])
    assert expected[1].tolist() == [0, 0]
    assert torch.allclose(losses_of_rows(chunked.logits, inputs["labels"]), expected)
    assert torch.allclose(chunked.loss, plain.loss)


def test_few_logits_are_computed_as_usual(few_at_once, monkeypatch):
    monkeypatch.setitem(head_loss.LARGE, "cpu", 2 * 9 * 32 + 1)
    collate = head_loss.chunk_head_loss(small_model(), lambda given: given)
    assert collate(batch()).keys() == batch().keys()
    monkeypatch.setitem(head_loss.LARGE, "cpu", 2 * 9 * 32)
    assert collate(batch()).keys() > batch().keys()


def scaled(model: Any) -> None:
    """Let a model change its logits in a way that its config does not tell."""
    plain = model.loss_function
    model.loss_function = lambda logits, **given: plain(logits=2 * logits, **given)


@pytest.mark.parametrize(
    ("kind", "change"),
    [
        ("gemma2", lambda model: None),  # caps its logits
        ("recurrent_gemma", lambda model: None),  # too, under another name: with small ones, no loss tells
        ("cohere", lambda model: None),  # scales them
        ("llama", scaled),
        ("llama", lambda model: setattr(model, "lm_head", torch.nn.Linear(16, 32))),  # with a bias
    ],
)
def test_a_model_that_does_more_to_its_logits_keeps_its_loss(few_at_once, kind, change):
    model = small_model(kind)
    change(model)
    expected = model(**batch(), use_cache=False).loss
    collate = head_loss.chunk_head_loss(model, lambda given: given)
    assert collate(batch()).keys() == batch().keys()
    assert model.training and model(**batch(), use_cache=False).loss == expected


@pytest.mark.parametrize("kind", ["llama", "gemma2", "recurrent_gemma", "cohere", "granite"])
def test_a_plan_knows_which_models_keep_all_logits(few_at_once, kind, tmp_path):
    model = small_model(kind)
    model.save_pretrained(tmp_path)
    chunked = head_loss.chunk_head_loss(model, lambda given: given)(batch()).keys() > batch().keys()
    found = counted(tmp_path)[0]["after_head"]
    assert chunked == (found == "") and (found == "cap") == ("gemma" in kind)


def test_a_loss_of_routers_keeps_no_model_from_its_chunks(few_at_once):
    """It is left out in training; the trial of a model's first batch would take it for a difference."""
    model = small_model("qwen3_moe", output_router_logits=True, router_aux_loss_coef=10.0)
    collate = head_loss.chunk_head_loss(model, lambda given: given)
    assert collate(batch()).keys() > batch().keys()


def test_a_model_is_tried_when_it_is_needed_and_once(few_at_once, monkeypatch):
    """On a machine with a GPU, kernels may not run before the model is there, or only within autocast."""
    tried = []
    monkeypatch.setattr(head_loss, "_is_alike", lambda base: tried.append(base) or True)
    llama, own = small_model("llama"), small_model()
    collates = [head_loss.chunk_head_loss(model, lambda given: given) for model in (llama, own)]
    assert not tried
    assert all(collate(batch()).keys() > batch().keys() for collate in collates for _ in range(2))
    assert tried == [llama]
    monkeypatch.undo()
    llama.loss_function = lambda *_, **given: torch.zeros(1).view(2)
    assert not head_loss._is_alike(llama) and llama.training


def test_documents_that_are_computed_one_by_one_stay_apart(few_at_once):
    """A loss in chunks would pass over the function that keeps them apart."""
    model, inputs = small_model("bloom"), batch() | packed_inputs([[0, 4], [0, 2, 5]], 9)
    assert keep_apart(model)
    expected = model(**inputs, use_cache=False).loss
    chunked = head_loss.chunk_head_loss(model, lambda given: given)(inputs)
    assert torch.allclose(model(**chunked, use_cache=False).loss, expected, rtol=1e-6)


def test_a_frozen_head_has_no_gradient(few_at_once):
    model = small_model()
    model.lm_head.requires_grad_(False)
    model(**head_loss.chunk_head_loss(model, lambda given: given)(batch())).loss.backward()
    assert model.lm_head.weight.grad is None
    assert model.model.embeddings.weight.grad.abs().sum() > 0
