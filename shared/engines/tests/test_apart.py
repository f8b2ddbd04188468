"""Documents of a packed row get what they get alone, whatever the architecture makes of positions."""

from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from nemotron_engines.modeling.packed import keep_apart, packed_inputs

SIZES = {"hidden_size": 32, "vocab_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
MAMBA2 = {"num_heads": 8, "head_dim": 8, "expand": 2, "state_size": 8, "n_groups": 2, "chunk_size": 8}


@pytest.mark.parametrize(
    ("kind", "more", "changed"),
    [
        ("llama", {"intermediate_size": 32, "num_key_value_heads": 2}, False),
        ("falcon", {}, True),
        ("bloom", {"n_layer": 2, "n_head": 4}, True),
        ("opt", {"ffn_dim": 32, "word_embed_proj_dim": 32}, True),
        ("mamba2", MAMBA2, True),
    ],
)
def test_packed_documents_are_computed_as_alone(kind: str, more: dict[str, Any], changed: bool) -> None:
    torch.manual_seed(0)
    config = AutoConfig.for_model(kind, **(SIZES | {"initializer_range": 0.2, "pad_token_id": 1} | more))
    model: Any = AutoModelForCausalLM.from_config(config).eval()  # without dropout
    assert keep_apart(model) == changed
    ids = torch.randint(2, 64, (2, 10))
    packed = model(input_ids=ids, labels=ids, use_cache=False, attention_mask=None, **packed_inputs([[0, 4], [0]], 10))
    parts = [(0, 0, 4), (0, 4, 10), (1, 0, 10)]
    for row, begin, end in parts:
        alone = model(input_ids=ids[row : row + 1, begin:end], use_cache=False).logits[0]
        assert torch.allclose(packed.logits[row, begin:end], alone, atol=1e-5)
    wanted = torch.nn.functional.cross_entropy(packed.logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
    assert torch.allclose(packed.loss, wanted)
    packed.loss.backward()
    assert model.get_input_embeddings().weight.grad.abs().sum() > 0
