"""Adapters: which layers they reach, that each takes part, and that they merge, save and load."""

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from kinds_of_models import SIZES, without_weights
from peft import PeftModel
from torch import nn
from transformers import AutoModelForCausalLM, Gemma3Config, Gemma3ForConditionalGeneration, NemotronHConfig
from twins import TWINS

from nemotron_data.tokenizers.tiny import save_tokenizer
from nemotron_engines.lora.adapt import adapted, coverage, lora_config, mamba_out_allowed, require_reached, table
from nemotron_engines.lora.export import load_adapter, merged, save_adapter
from nemotron_engines.lora.kinds import BLOCK_KINDS, kind_of
from nemotron_engines.modeling.build import load_model, random_like, save_model
from nemotron_shared.config.schema import LoraSection, ModelLoadingEngine
from nemotron_shared.families import architecture
from nemotron_shared.models.weights import ADAPTER_CONFIG, ADAPTER_WEIGHTS
from nemotron_shared.system.errors import UserError

ENGINE = ModelLoadingEngine(name="test", device="cpu", attn_implementation="sdpa", allow_reference_kernels=False)
IDS = torch.arange(6, 46).view(2, 20)


def section(**changed: Any) -> LoraSection:
    plain = {"dim": 8, "alpha": 16, "dropout": 0.0, "layers": None, "target_modules": [], "exclude_modules": []}
    return LoraSection(**(plain | changed))


def on_meta(name: str) -> Any:
    """The shapes of an architecture, without weights."""
    config = NemotronHConfig(**({"vocab_size": 131072} | architecture(name)))
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(config)


@pytest.fixture
def tiny(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    """The twin that the test names as a parameter, or Super's."""
    given = getattr(request.node, "callspec", None)
    twin = given.params.get("twin", "super3") if given else "super3"
    (tmp_path / "base").mkdir()
    NemotronHConfig(**architecture(f"{twin}_tiny"), vocab_size=64).save_pretrained(tmp_path / "base")
    return random_like(tmp_path / "base", 7, ENGINE)


def with_something_learned(model: PeftModel) -> PeftModel:
    """As if it had been trained: lora_B begins at zero."""
    draw = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for name, value in model.named_parameters():
            if "lora_B" in name:
                value.copy_(0.05 * torch.randn(value.shape, generator=draw))
    return model.eval()


@torch.no_grad()
def logits(model: Any) -> torch.Tensor:
    return model(input_ids=IDS, use_cache=False).logits


# Layers of each kind, and parameters trained at rank 8.
COVERED = {
    "super3_tiny": ({"attention": 4, "mamba_in": 3, "experts": 6, "shared_experts": 6, "latent": 6}, 60_608),
    "nano3_tiny": ({"attention": 4, "mamba_in": 3, "experts": 6, "shared_experts": 6}, 68_288),
    "nano3": ({"attention": 24, "mamba_in": 23, "experts": 46, "shared_experts": 46}, 219_720_192),
    "super3": ({"attention": 32, "mamba_in": 40, "experts": 80, "shared_experts": 80, "latent": 80}, 1_234_542_592),
}  # fmt: skip


@pytest.mark.parametrize("name", COVERED)
def test_all_linear_layers_of_the_blocks_that_peft_takes_are_adapted_and_nothing_else(name: str) -> None:
    layers, trained = COVERED[name]
    with mamba_out_allowed():
        model = PeftModel(on_meta(name), lora_config(on_meta(name), section()), low_cpu_mem_usage=True)
    found = coverage(model)
    assert {kind: one.adapted for kind, one in found.items() if one.adapted} == layers
    assert all(one.adapted in (0, one.layers) for one in found.values())
    assert [kind for kind, one in found.items() if not one.adapted] == ["mamba_out", "router", "lm_head", "embeddings"]
    assert sum(one.trained for one in found.values()) == trained
    assert table(model, section())[-2].startswith("mamba_out is not adapted, so that PEFT can load the adapter")
    assert table(model, section())[-1].startswith(f"trained: {trained:,} of")


def test_every_linear_module_has_a_kind() -> None:
    for name in COVERED:
        linear = [name for name, module in on_meta(name).named_modules() if isinstance(module, nn.Linear)]
        assert {kind_of(one) for one in linear} <= {*BLOCK_KINDS, "lm_head"}


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"layers": ["mlp"]}, "no layer of the kind mlp"),
        ({"target_modules": ["gate_proj"]}, "'gate_proj' matches no layer"),
        ({"exclude_modules": ["*.dense"]}, "'*.dense' matches no layer"),
        ({"layers": ["attention"], "exclude_modules": ["*_proj"]}, "chooses no layer"),
        ({"dropout": 0.1}, "kind experts have no dropout"),
    ],
)
def test_what_matches_nothing_is_an_error(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError) as caught:
        lora_config(on_meta("super3_tiny"), section(**changed))
    assert message in caught.value.message
    assert caught.value.remedy


@pytest.mark.parametrize(
    ("changed", "reached"),
    [
        ({"target_modules": ["lm_head"]}, {"lm_head": 1}),
        ({"target_modules": ["gate", "*.0.mixer.in_proj"]}, {"mamba_in": 1, "router": 3}),
        ({"layers": ["experts"], "exclude_modules": ["*.1.mixer.*"]}, {"experts": 4}),
        ({"layers": ["attention"], "target_modules": ["embeddings"]}, {"attention": 4, "embeddings": 1}),
        ({"layers": ["attention", "shared_experts"], "dropout": 0.1}, {"attention": 4, "shared_experts": 6}),
    ],
)
def test_layers_and_patterns_choose_what_is_adapted(tiny: Any, changed: dict[str, Any], reached: dict) -> None:
    model = adapted(tiny, section(**changed), 1)
    assert {kind: one.adapted for kind, one in coverage(model).items() if one.adapted} == reached
    assert logits(model.train()).isfinite().all()


def backward(model: Any) -> None:
    model.train()(input_ids=IDS, labels=IDS, use_cache=False).loss.backward()


def test_every_adapter_gets_a_gradient(tiny: Any) -> None:
    model = adapted(tiny, section(), 1)
    assert require_reached(model) is False  # before there is any
    backward(model)
    assert require_reached(model) is True


def test_an_adapter_that_a_kernel_passes_by_is_named(tiny: Any) -> None:
    model = adapted(tiny, section(layers=["attention", "mamba_out"]), 1)
    mixer = model.get_base_model().model.layers[0].mixer
    adapter = mixer.out_proj
    mixer.out_proj = adapter.base_layer  # as a kernel that takes the weight alone
    backward(model)
    mixer.out_proj = adapter
    with pytest.raises(UserError, match=r"layers\.0\.mixer\.out_proj, which get no gradient") as caught:
        require_reached(model)
    assert "engine.peft.exclude_modules=['*out_proj']" in str(caught.value.remedy)


def test_a_kernel_on_a_gpu_is_declined_where_out_proj_is_adapted(tiny: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers.models.nemotron_h import modeling_nemotron_h

    def fused(projected: torch.Tensor, *args: Any, outproj_weight: torch.Tensor, **kwargs: Any) -> torch.Tensor:
        return nn.functional.linear(projected[..., : outproj_weight.shape[1]], outproj_weight)

    monkeypatch.setattr(modeling_nemotron_h, "mamba2_split_conv1d_scan_combined", fused)
    model = adapted(tiny, section(layers=["mamba_in"]), 1)
    assert modeling_nemotron_h.mamba2_split_conv1d_scan_combined is fused
    model = adapted(model.unload(), section(layers=["mamba_out"]), 1)
    backward(model)
    assert require_reached(model)


@pytest.mark.parametrize("twin", TWINS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_merged_model_computes_what_the_adapters_did(
    tiny: Any, tmp_path: Path, dtype: torch.dtype, twin: str, measure: Any
) -> None:
    save_tokenizer(tmp_path / "tokenizer")
    save_model(tiny, tmp_path / "tokenizer", tmp_path / "model")
    base = load_model(tmp_path / "model", ENGINE, dtype=dtype)
    model = with_something_learned(adapted(base, section(), 1))
    assert {value.dtype for value in model.parameters() if value.requires_grad} == {torch.float32}
    before = logits(model)
    one, _ = merged(model)
    furthest = float((logits(one) - before).abs().max() / before.abs().max())
    name = str(dtype).removeprefix("torch.")
    measure(f"logits: merged adapters against adapters, {name}", furthest, 1e-5 if name == "float32" else 0.03)
    assert not any("lora" in name for name in one.state_dict())
    save_model(one, tmp_path / "tokenizer", tmp_path / "merged")
    again = load_model(tmp_path / "merged", ENGINE, dtype=dtype).eval()
    assert torch.equal(logits(again), logits(one))


def test_a_merge_that_changes_the_model_is_an_error(tiny: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    model = with_something_learned(adapted(tiny, section(), 1))
    monkeypatch.setattr(PeftModel, "merge_and_unload", lambda self, **_: self.unload(), raising=False)
    with pytest.raises(UserError, match="changes the model's logits"):
        merged(model)


def test_adapters_are_saved_as_peft_reads_them(tiny: Any, tmp_path: Path) -> None:
    model = with_something_learned(adapted(tiny, section(), 1))
    save_adapter(model, tmp_path / "adapter", None)
    save_adapter(model, tmp_path / "again", None)
    for name in (ADAPTER_WEIGHTS, ADAPTER_CONFIG):
        assert (tmp_path / "adapter" / name).read_bytes() == (tmp_path / "again" / name).read_bytes()
    assert sorted(path.name for path in (tmp_path / "adapter").iterdir()) == [ADAPTER_CONFIG, ADAPTER_WEIGHTS]
    before = logits(model)
    fresh = random_like(tmp_path / "base", 7, ENGINE)
    assert torch.allclose(logits(PeftModel.from_pretrained(fresh, str(tmp_path / "adapter")).eval()), before)


@pytest.mark.parametrize("twin", TWINS)
def test_adapters_are_loaded_whole_or_not_at_all(tiny: Any, tmp_path: Path, twin: str, measure: Any) -> None:
    model = with_something_learned(adapted(tiny, section(), 1))
    save_adapter(model, tmp_path / "adapter", None)
    again = adapted(random_like(tmp_path / "base", 7, ENGINE), section(), 2)
    load_adapter(again, tmp_path / "adapter")
    furthest = float((logits(again.eval()) - logits(model)).abs().max())
    measure("logits: loaded adapters against those saved", furthest, 0)
    other = adapted(random_like(tmp_path / "base", 7, ENGINE), section(dim=4), 2)
    with pytest.raises(UserError, match=r"do not match engine\.peft"):
        load_adapter(other, tmp_path / "adapter")


OTHERS = {
    "gpt2": ({"attention": 8, "mlp": 8}, {"embeddings"}),
    "qwen3_moe": ({"attention": 16, "experts": 8}, {"router", "lm_head", "embeddings"}),
    "gpt_oss": ({"attention": 16, "experts": 8}, {"router", "lm_head", "embeddings"}),
    "qwen3_next": ({"attention": 13, "experts": 8}, {"shared_experts", "router", "lm_head", "embeddings"}),
    "deepseek_v3": ({"attention": 20, "experts": 6}, {"mlp", "shared_experts", "router", "lm_head", "embeddings"}),
    "granite_moe_hybrid": ({"attention": 8, "mamba_in": 2, "mlp": 8, "experts": 8},
                           {"mamba_out", "router", "lm_head", "embeddings"}),
    "lfm2_moe": ({"attention": 8, "mamba_in": 2, "mlp": 3, "experts": 6}, {"mamba_out", "router", "embeddings"}),
    "mamba": ({"mamba_in": 2}, {"mamba_out", "embeddings", "other"}),
}  # fmt: skip
"""Of other architectures: adapted layers by kind, and the kinds that are not adapted unless they are named."""


def drawn(name: str) -> Any:
    """A model of another architecture, with random weights."""
    model: Any = without_weights(name).to_empty(device="cpu")
    model.tie_weights()
    draw = torch.Generator().manual_seed(5)
    for tensor in (*model.parameters(), *model.buffers()):
        if tensor.is_floating_point():
            nn.init.normal_(tensor, std=0.2, generator=draw)
        else:
            tensor.zero_()
    return model


@pytest.mark.parametrize("name", OTHERS)
def test_the_layers_of_other_architectures_are_adapted_by_their_role(name: str) -> None:
    adapted_layers, left_out = OTHERS[name]
    model = adapted(drawn(name), section(dim=2), 1)
    found = coverage(model)
    assert {kind: one.adapted for kind, one in found.items() if one.adapted} == adapted_layers
    assert {kind for kind, one in found.items() if not one.adapted} == left_out
    assert all(one.adapted in (0, one.layers) for one in found.values())
    ranks = {value.shape[0] for key, value in model.named_parameters() if "lora_A" in key and "experts" not in key}
    assert ranks == {2}
    said = "not adapted, so that PEFT can load the adapter: "
    expected = {"qwen3_next": ["shared_experts"], "deepseek_v3": ["mlp, shared_experts"]}.get(name, [])
    beside = [line.removeprefix(said).partition(";")[0] for line in table(model, section(dim=2)) if said in line]
    assert beside == expected


def test_layers_that_peft_takes_for_experts_are_adapted_where_they_are_named(tmp_path: Path) -> None:
    wanted = section(dim=2, layers=["mlp", "shared_experts"])
    model = with_something_learned(adapted(drawn("deepseek_v3"), wanted, 1))
    found = {kind: one.adapted for kind, one in coverage(model).items() if one.adapted}
    assert found == {"mlp": 3, "shared_experts": 9}
    said = "cannot load adapters of mlp, shared_experts of this architecture"
    assert any(said in line for line in table(model, wanted))
    expected = logits(model)
    save_adapter(model, tmp_path, None)
    again = adapted(drawn("deepseek_v3"), wanted, 2)
    load_adapter(again, tmp_path)
    assert torch.equal(logits(again.eval()), expected)
    assert torch.allclose(logits(merged(again)[0]), expected, atol=1e-4)


def test_adapters_elsewhere_than_chosen_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nemotron_engines.lora.adapt.names_as_they_are", nullcontext)
    with pytest.raises(UserError, match="does not adapt what was chosen, such as"):
        adapted(drawn("deepseek_v3"), section(dim=2, layers=["shared_experts"]), 1)


def reading_images() -> Any:
    """A Gemma 3 with a small tower for images, after one step on text."""
    text = SIZES | {"num_hidden_layers": 2, "vocab_size": 72}
    images = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2,
              "image_size": 28, "patch_size": 14}  # fmt: skip
    tokens = {"boi_token_index": 66, "eoi_token_index": 67, "image_token_index": 65, "mm_tokens_per_image": 4}
    config = Gemma3Config(text_config=text, vision_config=images, **tokens)
    return Gemma3ForConditionalGeneration(config)


def stepped(model: Any) -> Any:
    """After a step on text, in which the second matrix of each pair gets a gradient."""
    ids = torch.arange(3, 13)[None]
    model.train()(input_ids=ids, labels=ids).loss.backward()
    return model


def test_parts_that_read_no_text_get_no_adapters() -> None:
    model = adapted(reading_images(), section(dim=2), 1)
    trained = {name for name, value in model.named_parameters() if value.requires_grad}
    assert len(trained) == 2 * 2 * 7 and all(".language_model.layers." in name for name in trained)
    assert require_reached(stepped(model))
    everywhere = {"dim": 2, "target_modules": ["*_proj"]}
    with pytest.raises(UserError, match=r"vision_tower\S+, .* and \d more, which get no gradient") as caught:
        require_reached(stepped(adapted(reading_images(), section(**everywhere), 1)))
    advised = str(caught.value.remedy).partition("exclude_modules=['")[2].rstrip("]'")
    assert require_reached(stepped(adapted(reading_images(), section(**everywhere, exclude_modules=[advised]), 1)))
