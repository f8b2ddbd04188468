"""What acts of a config.json in a training, and what is left out."""

from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM
from zoo import ZOO

from nemotron_engines.modeling.taken import dropouts, without_dropout


@pytest.mark.parametrize("kind", ["llama", "gpt2", "phi3", "opt", "bloom", "gpt_neox", "nemotron_h"])
def test_a_model_without_dropout_computes_in_training_as_elsewhere(kind: str) -> None:
    """Attention keeps its rate in an attribute, where a search for torch's own modules does not see it."""
    config = ZOO[kind].config(ZOO[kind].tokenizer())
    asked = [key for key in config.to_dict() if "dropout" in key or "pdrop" in key]
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
