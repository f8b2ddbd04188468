"""Documents of a packed row get what they get alone, whatever the architecture makes of positions."""

from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from nemotron_engines.modeling.packed import keep_apart, packed_inputs, require_positions
from nemotron_shared.system.errors import UserError

SIZES = {"hidden_size": 32, "vocab_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
MAMBA2 = {"num_heads": 8, "head_dim": 8, "expand": 2, "state_size": 8, "n_groups": 2, "chunk_size": 8}
GROUPED = {"intermediate_size": 32, "num_key_value_heads": 2, "max_position_embeddings": 64}
MAMBA = GROUPED | {f"mamba_{name}": 8 for name in ("n_heads", "d_head", "d_state", "chunk_size")}
MAMBA["mamba_n_groups"] = 2
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
SEEN, REFUSED = "would see each other", "transformers refuses packed rows: `causal_conv1d_fn` can't keep"


@pytest.mark.parametrize(
    ("kind", "more", "reason"),
    [
        ("llama", GROUPED, None),
        ("falcon", {}, SEEN),
        ("bloom", {"n_layer": 2, "n_head": 4}, SEEN),
        ("opt", {"ffn_dim": 32, "word_embed_proj_dim": 32}, SEEN),
        ("mamba2", MAMBA2, SEEN),
        ("bamba", MAMBA | {"attn_layer_indices": [1]}, REFUSED),
        ("granitemoehybrid", MAMBA | {"layer_types": ["mamba", "attention"], "num_local_experts": 4,
                                      "num_experts_per_tok": 2, "shared_intermediate_size": 16}, REFUSED),
        ("falcon_h1", MAMBA | {"mamba_d_ssm": 64, "head_dim": 8}, REFUSED),
        ("zamba2", {"layers_block_type": ["mamba", "hybrid"], "num_mem_blocks": 1, "adapter_rank": 4,
                    "n_mamba_heads": 8, "mamba_headdim": 8, "mamba_d_state": 8, "mamba_ngroups": 2, "chunk_size": 8,
                    "intermediate_size": 32}, REFUSED),
        ("lfm2_moe", GROUPED | EXPERTS | {"layer_types": ["conv", "full_attention"], "num_dense_layers": 1}, REFUSED),
        ("qwen3_next", GROUPED | EXPERTS | {
            "layer_types": ["linear_attention", "full_attention"], "head_dim": 8, "linear_num_value_heads": 4,
            "linear_num_key_heads": 2, "linear_key_head_dim": 8, "linear_value_head_dim": 8,
            "shared_expert_intermediate_size": 16}, REFUSED),
    ],
)  # fmt: skip
def test_packed_documents_are_computed_as_alone(kind: str, more: dict[str, Any], reason: str | None) -> None:
    torch.manual_seed(0)
    config = AutoConfig.for_model(kind, **(SIZES | {"initializer_range": 0.2, "pad_token_id": 1} | more))
    model: Any = AutoModelForCausalLM.from_config(config).eval()  # without dropout
    ids = torch.randint(2, 64, (2, 10))
    parts = [(0, 0, 4), (0, 4, 10), (1, 0, 10)]
    alone = [model(input_ids=ids[row : row + 1, begin:end], use_cache=False).logits[0] for row, begin, end in parts]
    found = keep_apart(model)
    assert reason in found if reason and found else found == reason, found
    given = packed_inputs([[0, 4], [0]], 10)
    packed = model(input_ids=ids, labels=ids, shift_labels=ids, use_cache=False, attention_mask=None, **given)
    for (row, begin, end), wanted in zip(parts, alone, strict=True):
        assert torch.allclose(packed.logits[row, begin:end], wanted, atol=1e-5)
    # the loss of aligned labels, as of a training: the mean over the tokens of all documents
    targets = [ids[row, begin:end] for row, begin, end in parts]
    wanted = torch.nn.functional.cross_entropy(torch.cat(alone), torch.cat(targets))
    assert torch.allclose(packed.loss, wanted, atol=1e-5)
    packed.loss.backward()
    assert model.get_input_embeddings().weight.grad.abs().sum() > 0


@pytest.mark.parametrize(
    ("kind", "more"),
    [("gpt2", {"n_positions": 16, "n_embd": 32, "n_layer": 2, "n_head": 4}),
     ("opt", {"max_position_embeddings": 16, "ffn_dim": 32, "word_embed_proj_dim": 32}), ("llama", GROUPED)],
)  # fmt: skip
def test_texts_are_no_longer_than_a_table_of_positions(kind: str, more: dict[str, Any]) -> None:
    """And where positions are computed, a line says that the model may not know them."""
    model: Any = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **(SIZES | {"pad_token_id": 1} | more)))
    context, said = model.config.max_position_embeddings, list[str]()
    require_positions(model, context, "data_prep.pack_size", said.append)
    assert not said
    ids = torch.ones(1, context + 1, dtype=torch.int64) + 1
    if kind == "llama":
        require_positions(model, context + 1, "data_prep.pack_size", said.append)
        assert said == ["WARNING: texts have up to 65 tokens, and the model's context is 64: it may not have learnt to "
                        "read further"]  # fmt: skip
        model(ids)
        return
    with pytest.raises(UserError, match=r"up to 17 tokens, .* 16: it has no further positions") as error:
        require_positions(model, context + 1, "data_prep.pack_size", said.append)
    assert error.value.remedy == "set data_prep.pack_size=16, or shorten the texts"
    model(ids[:, 1:])
    with pytest.raises(IndexError):
        model(ids)
