"""What acts of a config.json in a training, and what is left out."""

import copy
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM
from zoo import ZOO, Kind, chatml

from nemotron_engines.modeling import build
from nemotron_engines.modeling.taken import dropouts, without_dropout

KINDS = ZOO | {"persimmon": Kind("persimmon", chatml, {}, ("num_key_value_heads",))}


@pytest.mark.parametrize(
    "kind", ["llama", "gpt2", "phi3", "opt", "bloom", "gpt_neox", "nemotron_h", "mixtral", "falcon", "persimmon"]
)
def test_a_model_without_dropout_computes_in_training_as_elsewhere(kind: str) -> None:
    """Attention keeps its rate in an attribute, where a search for torch's own modules does not see it, or reads the
    config, whatever the attributes are.
    """
    config = KINDS[kind].config(KINDS[kind].tokenizer())
    asked = [key for key in config.to_dict() if re.search("dropout|pdrop|layerdrop|jitter", key)]
    for key in asked:
        setattr(config, key, 0.5)
    torch.manual_seed(0)
    model: Any = AutoModelForCausalLM.from_config(config)
    ids = torch.arange(2, 12)[None]

    @torch.no_grad()
    def moved() -> float:
        logits = [model.train(mode)(ids, use_cache=False).logits for mode in (True, False)]
        return float((logits[0] - logits[1]).abs().max())

    assert moved() > 1e-3
    without_dropout(model)
    assert moved() < 1e-6
    assert dropouts(model.config) == dict.fromkeys(asked, 0.5), "what is published is what the folder says"
    model.set_attn_implementation("eager")
    assert copy.deepcopy(model)(ids).logits.isfinite().all(), "layers see what else of it changes"


@pytest.mark.parametrize("noise", [0.0, 0.3])
def test_a_threshold_is_no_dropout(noise: float) -> None:
    """PhiMoE's routers leave out experts that are further from the best one than `router_jitter_noise`, always."""
    kind = Kind("phimoe", chatml, {"num_local_experts": 4, "num_experts_per_tok": 2, "router_jitter_noise": 0.4,
                                   "input_jitter_noise": noise})  # fmt: skip
    torch.manual_seed(0)
    model: Any = AutoModelForCausalLM.from_config(kind.config(chatml())).eval()
    ids = torch.arange(2, 12)[None]
    with torch.no_grad():
        before = model(ids).logits
        without_dropout(model)
        assert torch.equal(model(ids).logits, before)
    assert dropouts(model.config) == ({"input_jitter_noise": noise} if noise else {})


@pytest.mark.parametrize("kind", ["llama", "qwen3", "mixtral"])
@pytest.mark.parametrize("strategy", ["ddp", "fsdp2"])
def test_a_padding_token_that_ends_turns_is_trained(kind: str, strategy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    config = KINDS[kind].config(KINDS[kind].tokenizer())
    config.pad_token_id, ids = 7, torch.tensor([[3, 7, 5, 9]])

    def made(*_: Any) -> Any:
        torch.manual_seed(0)
        return AutoModelForCausalLM.from_config(config)

    def gradient(model: Any) -> float:
        model(ids, labels=ids).loss.backward()
        return float(model.get_input_embeddings().weight.grad[7].abs().max())

    config.tie_word_embeddings = False
    assert gradient(made()) == 0.0, "transformers gives the row one itself: with_every_row_trained can go"
    monkeypatch.setattr(build, "_whole", made)
    monkeypatch.setattr("nemotron_engines.modeling.sharded.spread", lambda whole, *_: whole())
    engine = SimpleNamespace(strategy=strategy, dtype=None, device="cpu")
    task: Any = SimpleNamespace(config=SimpleNamespace(engine=engine))
    assert gradient(build.starting_weights(task, Path())) > 0.0
