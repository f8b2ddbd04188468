"""Models to export, and GGUF files as llama.cpp's converter writes them, made without it."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import torch
from packed_support import write_packed
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM, GPT2Config, LlamaConfig, PreTrainedModel, Qwen2Config

from nemotron_data.tokenizers.tiny import save_tokenizer
from nemotron_engines.modeling.build import ONLY_MADE, load_model, load_tokenizer, random_model, save_model
from nemotron_shared.artifacts import Artifact, Parent, Producer, Store
from nemotron_shared.config.schema import LoraSection, ModelSection

WEIGHTS = "model.safetensors"
SMALL = {"vocab_size": 512, "bos_token_id": 2, "eos_token_id": 5, "pad_token_id": 0}
ATTENTION = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
             "intermediate_size": 96, "max_position_embeddings": 4096, "tie_word_embeddings": False}  # fmt: skip
QWEN_EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "head_dim": 16}
LATENT = {"n_routed_experts": 4, "num_experts_per_tok": 2, "n_group": 1, "topk_group": 1, "moe_intermediate_size": 32,
          "first_k_dense_replace": 1, "q_lora_rank": 16, "kv_lora_rank": 16, "qk_rope_head_dim": 8,
          "qk_nope_head_dim": 8, "v_head_dim": 16}  # fmt: skip
STATES = {"num_heads": 8, "head_dim": 16, "state_size": 16, "n_groups": 1, "expand": 2}
OTHERS: dict[str, Callable[[], Any]] = {
    "llama": lambda: LlamaConfig(**SMALL, **ATTENTION),
    "qwen2_tied": lambda: Qwen2Config(**SMALL, **ATTENTION | {"tie_word_embeddings": True}),
    "qwen2": lambda: Qwen2Config(**SMALL, **ATTENTION),
    "llama64": lambda: LlamaConfig(**SMALL, **ATTENTION | {"hidden_size": 256}),
    "qwen64": lambda: Qwen2Config(**SMALL, **ATTENTION | {"hidden_size": 256}),
    "gpt2": lambda: GPT2Config(**SMALL, n_embd=64, n_layer=2, n_head=4),
    "tied": lambda: LlamaConfig(**SMALL, **ATTENTION | {"tie_word_embeddings": True}),
    "mixtral": lambda: AutoConfig.for_model("mixtral", **SMALL, **ATTENTION, num_local_experts=4),
    "qwen3_moe": lambda: AutoConfig.for_model("qwen3_moe", **SMALL, **ATTENTION, **QWEN_EXPERTS),
    "deepseek_v3": lambda: AutoConfig.for_model("deepseek_v3", **SMALL, **ATTENTION, **LATENT),
    "mamba2": lambda: AutoConfig.for_model("mamba2", **SMALL, hidden_size=64, num_hidden_layers=2, **STATES),
    "gpt_neox": lambda: AutoConfig.for_model("gpt_neox", **SMALL, **ATTENTION),
    "gemma3_text": lambda: AutoConfig.for_model("gemma3_text", **SMALL, **ATTENTION, head_dim=16),
    **{
        name: lambda name=name: AutoConfig.for_model(name, **SMALL, **ATTENTION)
        for name in ("mistral", "qwen3", "phi3", "olmo2", "granite", "gemma2", "starcoder2", "stablelm", "cohere")
    },
}
HEADS = {"head_dim": 64}
"""Of a size that vLLM takes on a CPU."""
DENSE = {"hybrid_override_pattern": "M-M*-", "intermediate_size": 96, **HEADS}
BLOCK = 32
"""Rows and columns of FP8 weights that share a scale in `in_8_bits`."""


def make(folder: Path, kind: str, overrides: dict[str, Any] | None = None) -> Path:
    """A model folder with random weights that are unlike each other, biases of routers and norms included."""
    folder.mkdir(parents=True)
    save_tokenizer(folder)
    torch.manual_seed(5)
    if kind in OTHERS:
        model: PreTrainedModel = AutoModelForCausalLM.from_config(OTHERS[kind]())
    else:
        model = random_model(
            ModelSection(architecture=kind, overrides=overrides or {}), load_tokenizer(folder), 7, ONLY_MADE
        )
    with torch.no_grad():
        for name, value in (*model.named_parameters(), *model.named_buffers()):
            if value.is_floating_point() and (value.dim() == 1 or "bias" in name):
                value.add_(0.05 * torch.randn(value.shape))
    save_model(model, folder, folder)
    return folder


def change_weights(folder: Path, change: Callable[[dict[str, torch.Tensor]], Any]) -> None:
    """Edit the tensors of an exported folder."""
    file = next(path for path in (folder / WEIGHTS, folder / "adapter_model.safetensors") if path.is_file())
    tensors = load_file(file)
    change(tensors)
    save_file({name: value.contiguous().clone() for name, value in tensors.items()}, file, metadata={"format": "pt"})


def weights(change: Callable[[dict[str, torch.Tensor]], Any]) -> Callable[[Path], Any]:
    return lambda folder: change_weights(folder, change)


def put(name: str, value: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Path], Any]:
    return weights(lambda x: x.update({name: value(x[name])}))


def swap(first: str, second: str) -> Callable[[Path], Any]:
    """Exchange all tensors whose names begin with these."""

    def change(x: dict[str, torch.Tensor]) -> None:
        for name in [name for name in x if name.startswith(first)]:
            other = second + name.removeprefix(first)
            x[name], x[other] = x[other], x[name]

    return weights(change)


def change_json(folder: Path, name: str, change: Callable[[dict[str, Any]], Any]) -> None:
    """Edit a file of settings."""
    values = json.loads((folder / name).read_text())
    change(values)
    (folder / name).write_text(json.dumps(values))


def in_shards(folder: Path) -> None:
    """Two files and an index, as consolidated checkpoints have."""
    tensors = load_file(folder / WEIGHTS)
    (folder / WEIGHTS).unlink()
    names = sorted(tensors)
    places = {name: f"model-0000{1 + number % 2}-of-00002.safetensors" for number, name in enumerate(names)}
    for file in set(places.values()):
        own = {name: tensors[name].clone() for name in names if places[name] == file}
        save_file(own, folder / file, metadata={"format": "pt"})
    index = {"metadata": {}, "weight_map": places}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def in_8_bits(folder: Path, method: str, only: str = "") -> None:
    """Projections in 8 bits with their scales, as three programs name them."""

    def change(tensors: dict[str, torch.Tensor]) -> None:
        for name in [name for name in tensors if name.endswith("_proj.weight") and only in name]:
            weight = tensors[name].float()
            if method == "int8":
                scale = weight.abs().amax(1, keepdim=True) / 127
                tensors |= {name: (weight / scale).round().to(torch.int8), f"{name}_scale": scale}
            elif method == "fp8":
                rows, columns = (-(-size // BLOCK) for size in weight.shape)
                scale = torch.full((rows, columns), float(weight.abs().max() / 448))
                tensors |= {name: (weight / scale.max()).to(torch.float8_e4m3fn), f"{name}_scale_inv": scale}
            else:
                scale = weight.abs().max() / 448
                tensors |= {name: (weight / scale).to(torch.float8_e4m3fn), f"{name}_scale": scale}
                if method == "modelopt":
                    tensors[f"{name.removesuffix('weight')}input_scale"] = torch.tensor(0.5)

    change_weights(folder, change)
    told: dict[str, Any] = {
        "modelopt": {
            "quant_method": "modelopt",
            "quant_algo": "FP8",
            "ignore": ["lm_head", "*.gate"],
            "config_groups": {"group_0": {"input_activations": {"dynamic": False, "num_bits": 8, "type": "float"}}},
        },
        "fp8": {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [BLOCK, BLOCK]},
        "compressed": {"quant_method": "compressed-tensors", "format": "float-quantized", "ignore": ["lm_head"]},
        "int8": {"quant_method": "compressed-tensors", "format": "int-quantized", "ignore": ["re:.*head"]},
    }
    change_json(folder, "config.json", lambda config: config.update(quantization_config=told[method]))
    if method == "modelopt":
        own = {"quant_algo": "FP8", "exclude_modules": told[method]["ignore"]}
        (folder / "hf_quant_config.json").write_text(json.dumps({"quantization": own}))


def rotated(tensor: torch.Tensor, heads: int) -> torch.Tensor:
    """The rows of each head as llama.cpp wants them: first and second halves in turn."""
    return torch.cat([torch.stack(one.chunk(2), 1).flatten(0, 1) for one in tensor.chunk(heads)])


NAMES = {
    "norm": "attn_norm", "mixer.in_proj": "ssm_in", "mixer.out_proj": "ssm_out", "mixer.norm": "ssm_norm",
    "mixer.gate": "ffn_gate_inp", "mixer.shared_experts.up_proj": "ffn_up_shexp",
    "mixer.shared_experts.down_proj": "ffn_down_shexp", "mixer.fc1_latent_proj": "ffn_latent_down",
    "mixer.fc2_latent_proj": "ffn_latent_up", "mixer.o_proj": "attn_output", "mixer.q_proj": "attn_q",
    "mixer.k_proj": "attn_k", "mixer.v_proj": "attn_v", "mixer.conv1d": "ssm_conv1d",
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down", "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
}  # fmt: skip
TOP = {"backbone.embeddings.weight": "token_embd.weight", "backbone.norm_f.weight": "output_norm.weight",
       "model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight",
       "lm_head.weight": "output.weight"}  # fmt: skip


def as_gguf(folder: Path) -> tuple[str, dict[str, torch.Tensor], dict[str, Any]]:
    """Architecture, tensors and settings of the GGUF file of a model folder."""
    config = json.loads((folder / "config.json").read_text())
    # the converter leaves out what predicts further tokens
    tensors = {name: value for name, value in load_file(folder / WEIGHTS).items() if not name.startswith("mtp.")}
    kind = "nemotron_h_moe" if config["model_type"] == "nemotron_h" else config["model_type"]
    made: dict[str, torch.Tensor] = {}
    stacks: dict[str, dict[int, torch.Tensor]] = {}
    for name, value in tensors.items():
        if name in TOP:
            made[TOP[name]] = value
            continue
        _, _, layer, rest = name.split(".", 3)
        block, end = f"blk.{layer}.", rest.rpartition(".")[2]
        if ".experts." in rest:
            number, projection = rest.split(".")[2:4]
            place = f"{block}ffn_{projection.removesuffix('_proj')}_exps.weight"
            stacks.setdefault(place, {})[int(number)] = value
        elif rest.endswith("A_log"):
            made[f"{block}ssm_a"] = -value.exp()[:, None]
        elif rest.endswith(".D"):
            made[f"{block}ssm_d"] = value[:, None]
        elif rest.endswith("dt_bias"):
            made[f"{block}ssm_dt.bias"] = value
        elif rest.endswith("e_score_correction_bias"):
            made[f"{block}exp_probs_b.bias"] = value
        else:
            if rest == "mixer.norm.weight":
                value = value.reshape(config["n_groups"], -1)
            if ".conv1d.weight" in rest:
                value = value[:, 0]
            heads = {"q_proj": "num_attention_heads", "k_proj": "num_key_value_heads"}.get(rest.split(".")[-2])
            if heads and kind != "qwen2":
                value = rotated(value, config[heads])
            made[f"{block}{NAMES[rest.rpartition('.')[0]]}.{end}"] = value
    made |= {place: torch.stack([stack[number] for number in sorted(stack)]) for place, stack in stacks.items()}
    settings = {
        "block_count": len(config.get("layers_block_type") or range(config.get("num_hidden_layers", 0))),
        "context_length": config["max_position_embeddings"], "embedding_length": config["hidden_size"],
        "attention.head_count": config["num_attention_heads"], "vocab_size": 512,
    }  # fmt: skip
    if kind == "nemotron_h_moe":
        settings |= {
            "expert_count": config["n_routed_experts"], "expert_used_count": config["num_experts_per_tok"],
            "expert_weights_norm": config["norm_topk_prob"], "expert_weights_scale": config["routed_scaling_factor"],
            "attention.layer_norm_epsilon": config["layer_norm_epsilon"], "ssm.state_size": config["ssm_state_size"],
        }  # fmt: skip
    else:
        settings |= {"attention.layer_norm_rms_epsilon": config["rms_norm_eps"], "rope.freq_base": 10000.0}
    tokenizer = load_tokenizer(folder)
    told = json.loads((folder / "tokenizer.json").read_text())
    added = {one["id"]: 3 if one["special"] else 4 for one in told["added_tokens"]}
    settings |= {
        "tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": tokenizer.convert_ids_to_tokens(list(range(512))),
        "tokenizer.ggml.token_type": [added.get(number, 1) for number in range(512)],
        "tokenizer.ggml.merges": [" ".join(pair) for pair in told["model"]["merges"]],
        "tokenizer.ggml.bos_token_id": 2, "tokenizer.ggml.eos_token_id": 5, "tokenizer.ggml.padding_token_id": 0,
        "tokenizer.chat_template": tokenizer.chat_template,
    }  # fmt: skip
    return kind, made, settings


def write_gguf(
    file: Path, kind: str, tensors: dict[str, torch.Tensor], settings: dict[str, Any], dtype: str = "F32"
) -> None:
    """Write them; norms and what is no matrix stay in float32."""
    file.parent.mkdir(parents=True, exist_ok=True)
    writer = gguf.GGUFWriter(str(file), kind)
    for key, value in settings.items():
        name = key if key.startswith("tokenizer.") else f"{kind}.{key}"
        if isinstance(value, bool):
            writer.add_bool(name, value)
        elif isinstance(value, int):
            writer.add_uint32(name, value)
        elif isinstance(value, float):
            writer.add_float32(name, value)
        elif isinstance(value, str):
            writer.add_string(name, value)
        else:
            writer.add_array(name, value)
    for name, value in tensors.items():
        plain = value.float().contiguous().numpy()
        if dtype == "F32" or value.dim() < 2 or value.shape[-1] % 32 or not name.endswith("weight") or "norm" in name:
            writer.add_tensor(name, plain)
        else:
            wanted = getattr(gguf.GGMLQuantizationType, dtype)
            writer.add_tensor(name, gguf.quants.quantize(plain, wanted), raw_dtype=wanted)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def copied(source: Path, target: Path) -> Path:
    """A copy of a folder, to be damaged."""
    return shutil.copytree(source, target)


SECTION = LoraSection(dim=4, alpha=8, dropout=0.0, layers=None, target_modules=[], exclude_modules=[])


def publish(store: Store, folder: Path, name: str, **more: Any) -> Artifact:
    """A model in a store."""
    made_by = Producer("sft", "train", "0", "0", "", "", "0123456789abcdef", "python -m stages.sft.train", {})
    return store.publish(folder, name=name, type="ModelArtifact", fingerprint=name, producer=made_by, **more)


def with_rows(
    place: Path, kind: str, overrides: dict[str, Any] | None = None, change: Callable[[Path], Any] = lambda folder: None
) -> Store:
    """A store with a model, and the data that it might have been trained on.

    Args:
        change: what is done with the model's folder first.
    """
    data, draw = place / "data", torch.Generator().manual_seed(6)
    data.mkdir(parents=True)
    save_tokenizer(data / "tokenizer")
    for split in ("train", "test"):
        rows = [torch.randint(0, 512, (40,), generator=draw).tolist() for _ in range(6)]
        write_packed(data / f"{split}.parquet", [(ids, [1] * len(ids)) for ids in rows], [[n] for n in range(6)])
    store = Store(place / "home")
    store.home.mkdir()
    made_by = Producer("sft", "data_prep", "0", "0", "", "", "0123456789abcdef", "python -m stages.sft.data_prep", {})
    rows = store.publish(data, name="rows", type="SFTDataArtifact", fingerprint="rows", producer=made_by)
    parents = [Parent(rows.reference, rows.manifest.digest, "data")]
    model = make(place / "model", kind, overrides)
    change(model)
    publish(store, model, "trained", parents=parents)
    return store


def with_adapters(place: Path, kind: str = "nano3_tiny", overrides: dict[str, Any] | None = None) -> Store:
    """A store with a base model, and one with merged adapters; up and down of Nano's experts have the same shape."""
    from nemotron_engines.lora.adapt import adapted
    from nemotron_engines.lora.export import merged, save_adapter

    torch.set_num_threads(1)
    base = make(place / "base", kind, overrides)
    model = adapted(load_model(base, ONLY_MADE), SECTION, 3)
    draw = torch.Generator().manual_seed(4)
    with torch.no_grad():
        for name, value in model.named_parameters():
            if "lora_B" in name:
                value.copy_(0.05 * torch.randn(value.shape, generator=draw))
    save_adapter(model, place / "sft" / "adapter", str(base))
    save_model(merged(model)[0], base, place / "sft")
    store = Store(place / "home")
    store.home.mkdir()
    before = publish(store, base, "base")
    publish(store, place / "sft", "trained", parents=[Parent(before.reference, before.manifest.digest, "model")])
    return store
