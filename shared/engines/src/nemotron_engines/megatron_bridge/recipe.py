"""Bridge's own configuration to start from: a recipe's, or a general one around our `model.architecture`.

A recipe would read its model's config.json from the hub. It gets a folder instead: the model that the run starts
from, or a config made from `model.architecture` with the vocabulary of the data's tokenizer.
"""

from pathlib import Path
from typing import Any

from nemotron_engines.megatron_bridge.versions import hub_replaced_by, recipe_function
from nemotron_engines.modeling.architecture import load_architecture
from nemotron_engines.modeling.build import load_tokenizer, nemotron_config
from nemotron_shared.config.schema import ModelSection

# Fields of Bridge's model provider that a Hugging Face config decides. A recipe that describes its model itself, as
# Nano's pretraining does, gets them from our architecture too, so that `model` means the same with every engine.
DECIDED_BY_ARCHITECTURE = (
    "hybrid_layer_pattern", "num_layers", "hidden_size", "ffn_hidden_size", "num_attention_heads", "num_query_groups",
    "kv_channels", "mamba_num_heads", "mamba_head_dim", "mamba_num_groups", "mamba_state_dim", "mamba_chunk_size",
    "num_moe_experts", "moe_router_topk", "moe_router_topk_scaling_factor", "moe_ffn_hidden_size",
    "moe_shared_expert_intermediate_size", "moe_latent_size", "mtp_num_layers", "mtp_hybrid_override_pattern",
    "mtp_use_repeated_layer", "vocab_size",
)  # fmt: skip


def base_config(name: str | None, folder: Path, finetune: bool) -> Any:
    """A ConfigContainer of Bridge.

    Args:
        name: recipe below `megatron.bridge.recipes`. None: Bridge's settings for any pretraining or fine-tuning.
        folder: holds the config.json of the model.
        finetune: which of Bridge's general settings, where there is no recipe.

    Raises:
        UserError: there is no such recipe.
    """
    if name is None:
        from megatron.bridge.recipes import common  # ty: ignore[import-not-found]

        container = common._sft_common() if finetune else common._pretrain_common()
        container.model = provider_of(folder)
        return container
    with hub_replaced_by(folder) as asked:
        container = recipe_function(name)()
    if not asked:
        described = provider_of(folder)
        for field in DECIDED_BY_ARCHITECTURE:
            setattr(container.model, field, getattr(described, field))
    if not container.model.mtp_hybrid_override_pattern:
        container.model.mtp_num_layers = 0  # a recipe counts on prediction blocks that this model has not
    return container


def provider_of(folder: Path) -> Any:
    """Bridge's description of the model in a Hugging Face folder; only its config.json is read."""
    from megatron.bridge import AutoBridge  # ty: ignore[import-not-found]

    return AutoBridge.from_hf_pretrained(str(folder)).to_megatron_provider(load_weights=False)


def write_model_config(section: ModelSection, tokenizer: Path, folder: Path) -> Path:
    """Write the config.json of an architecture, with the vocabulary of a tokenizer, into `folder`."""
    config = nemotron_config(load_architecture(section.architecture, section.overrides), load_tokenizer(tokenizer))
    config.architectures = ["NemotronHForCausalLM"]
    config.save_pretrained(folder)
    return folder
