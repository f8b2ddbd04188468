"""TRL's head computes the log-probabilities of the model's own logits, or a rehearsal refuses the model."""

from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from nemotron_shared.system.errors import UserError
from stages.rl.engines.trl.library import add_fused_lm_head
from stages.rl.engines.trl.rehearsing import require_same_head, rewards_apart

SIZES = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4,
         "num_key_value_heads": 2, "head_dim": 8, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}  # fmt: skip
KNOWN = {
    "llama": {},
    "gemma2": {"final_logit_softcapping": 5.0},
    "granite": {"logits_scaling": 8.0},
    "cohere": {"logit_scale": 0.5, "num_key_value_heads": 4},
}


def changed(kind: str, temperature: float, **more: Any) -> Any:
    """A small random model, as TRL changes it."""
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **(SIZES | more))).train()
    add_fused_lm_head(model, temperature=temperature)
    return model


@pytest.mark.parametrize("kind", KNOWN)
def test_heads_that_trl_knows_pass(kind: str) -> None:
    model = changed(kind, 0.7, **KNOWN[kind])
    before = model.get_output_embeddings().weight.clone()
    with rewards_apart():
        require_same_head(model, 0.7)
        with pytest.raises(UserError):
            require_same_head(model, 0.8)
    assert torch.equal(model.get_output_embeddings().weight, before) and model.training


def test_a_cap_under_another_name_is_refused() -> None:
    more = {"attention_window_size": 32, "lru_width": 32}
    model = changed("recurrent_gemma", 1.0, **more)
    require_same_head(model)  # outside of a rehearsal nothing is compared
    with (
        rewards_apart(),
        pytest.raises(UserError, match=r"^TRL 1\.16 computes other log-probabilities than this model"),
    ):
        require_same_head(model)
