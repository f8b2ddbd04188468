"""Folders that other programs wrote: each fault is named by its tensor or key, and sound folders raise no alarm.

The layouts are those of Megatron-Bridge's export (bfloat16), NeMo-RL's and Automodel's consolidated checkpoints, an
adapter of PEFT, FP8 of ModelOpt (weight_scale) and of DeepSeek (weight_scale_inv), and compressed-tensors.
"""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from passport_support import change_json, change_weights, copied, in_8_bits, in_shards, make, put, swap, with_adapters
from safetensors.torch import load_file, save_file

from nemotron_app.main import main
from nemotron_engines.modeling.build import ONLY_MADE, load_model, require_tensors, save_model
from nemotron_serving.passport.alone import by_itself
from nemotron_shared.models.finding import look_before_hashing
from nemotron_shared.system.errors import UserError

Tensors = dict[str, torch.Tensor]
MOE, ATTENTION = "backbone.layers.1.mixer.", "backbone.layers.3.mixer."
Q, UP, DOWN = f"{ATTENTION}q_proj.weight", f"{MOE}experts.1.up_proj.weight", f"{MOE}experts.1.down_proj.weight"
BIAS, NORM = f"{MOE}gate.e_score_correction_bias", "backbone.norm_f.weight"
MLP = "model.layers.0.mlp.down_proj.weight"


def trained(folder: Path) -> None:
    """Move every weight a little."""
    draw = torch.Generator().manual_seed(9)
    change_weights(
        folder,
        lambda x: x.update(
            {
                name: value + 0.05 * (float(value.std()) if value.numel() > 1 else 1.0)
                * torch.randn(value.shape, generator=draw)
                for name, value in x.items()
            }
        ),
    )  # fmt: skip


def narrowed(folder: Path) -> None:
    """As Megatron-Bridge writes a model that was trained in bfloat16: all but the routers' biases."""
    change_weights(folder, lambda x: x.update({k: v.bfloat16() for k, v in x.items() if "e_score" not in k}))
    change_json(folder, "config.json", lambda config: config.update(dtype="bfloat16"))


WRITTEN: dict[str, tuple[str, list[Callable[[Path], Any]]]] = {
    "megatron": ("super3_tiny", [trained, narrowed]),
    "megatron, nano": ("nano3_tiny", [trained, narrowed, in_shards]),
    "nemo_rl": ("nano3_tiny", [trained, in_shards]),
    "automodel": ("super3_tiny", [trained]),
    "automodel, llama": ("llama", [trained, narrowed]),
    "nemo_rl, qwen": ("qwen2", [trained, in_shards]),
    "gpt2": ("gpt2", [trained]),
    "modelopt": ("super3_tiny", [narrowed, lambda folder: in_8_bits(folder, "modelopt")]),
    "modelopt, llama in shards": ("llama", [lambda folder: in_8_bits(folder, "modelopt"), in_shards]),
    "deepseek": ("llama", [narrowed, lambda folder: in_8_bits(folder, "fp8")]),
    "deepseek, experts": ("nano3_tiny", [lambda folder: in_8_bits(folder, "fp8")]),
    "compressed fp8": ("qwen2", [lambda folder: in_8_bits(folder, "compressed")]),
    "compressed int8": ("super3_tiny", [lambda folder: in_8_bits(folder, "int8")]),
}


@pytest.fixture(scope="module")
def bases(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    place = tmp_path_factory.mktemp("bases")
    for kind in {kind for kind, _ in WRITTEN.values()}:
        make(place / kind, kind)
    return place


@pytest.fixture(scope="module")
def adapters(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A base model, and an adapter's folder as PEFT and Automodel write it."""
    store = with_adapters(tmp_path_factory.mktemp("adapters"))
    return store.resolve("base").path, store.resolve("trained").path / "adapter"


def written(bases: Path, into: Path, program: str) -> Path:
    kind, steps = WRITTEN[program]
    folder = copied(bases / kind, into / "folder")
    for step in steps:
        step(folder)
    return folder


def found(folder: Path, base: Path | None = None) -> dict[str, str]:
    return {finding.key: finding.message for finding in by_itself(folder, base).findings}


@pytest.mark.parametrize("program", WRITTEN)
def test_a_sound_folder_raises_no_alarm(bases: Path, tmp_path: Path, program: str) -> None:
    folder = written(bases, tmp_path, program)
    look_before_hashing(str(folder))
    assert found(folder) == {}
    assert found(folder, bases / WRITTEN[program][0]) == {}


def test_a_sound_adapter_raises_no_alarm(adapters: tuple[Path, Path]) -> None:
    base, adapter = adapters
    assert found(adapter) == found(adapter, base) == {}


def drop(*names: str) -> Callable[[Path], Any]:
    return lambda folder: change_weights(folder, lambda x: [x.pop(name) for name in names])


def say(**values: Any) -> Callable[[Path], Any]:
    return lambda folder: change_json(folder, "config.json", lambda config: config.update(values))


def stale_template(folder: Path) -> None:
    file = folder / "chat_template.jinja"
    file.write_text(file.read_text().replace("message.role + '\\n'", "message.role"))


def add_to_shard(folder: Path, name: str) -> None:
    """One more tensor, in a file of two and in their index."""
    file = folder / "model-00001-of-00002.safetensors"
    save_file(load_file(file) | {name: torch.ones(2, 2)}, file, metadata={"format": "pt"})
    change_json(folder, "model.safetensors.index.json", lambda x: x["weight_map"].update({name: file.name}))


def quantisation(change: Callable[[dict[str, Any]], Any]) -> Callable[[Path], Any]:
    return lambda folder: change_json(folder, "config.json", lambda config: change(config["quantization_config"]))


ALONE: dict[str, tuple[str, Callable[[Path], Any], str, str]] = {
    "tensor lost": ("megatron", drop(UP), UP, "is missing"),
    "wrapper's prefix": ("automodel", lambda f: change_weights(f, lambda x: x.update({f"module.{NORM}": x.pop(NORM)})),
                         NORM, f"there is module.{NORM}"),
    "padded vocabulary": ("megatron", put("lm_head.weight", lambda x: torch.cat([x, x[:128]])), "lm_head.weight",
                          "has the shape [640, 64], and config.json asks for [512, 64]"),
    "transposed": ("automodel", put(UP, lambda x: x.T), UP, "config.json asks for"),
    "invented": ("nemo_rl, qwen", lambda f: add_to_shard(f, "model.extra"), "model.extra", "has no place for it"),
    "not a number": ("automodel", put(Q, lambda x: x / 0), Q, "NaN or infinity"),
    "all zero": ("automodel", put(Q, torch.zeros_like), Q, "is all zero"),
    "router bias rounded": ("megatron", put(BIAS, torch.Tensor.bfloat16), BIAS, "routers add it in float32"),
    "another type": ("automodel, llama", put(MLP, torch.Tensor.half), MLP, "is stored as F16"),
    "prediction block promised": ("megatron", say(num_nextn_predict_layers=1), "config.json: num_nextn_predict_layers",
                                  "promises 1 block"),
    "head beside ties": ("automodel, llama", say(tie_word_embeddings=True), "config.json: tie_word_embeddings",
                         "contain a separate head"),
    "end outside": ("automodel", say(eos_token_id=600), "config.json: eos_token_id", "is 600"),
    "padding": ("automodel", say(pad_token_id=3), "config.json: pad_token_id", "is 3, and the tokenizer's"),
    "another size": ("automodel, llama", say(intermediate_size=128), MLP, "asks for [64, 128]"),
    "fewer layers": ("automodel, llama", say(num_hidden_layers=1), "model.layers.1.mlp.down_proj.weight", "no place"),
    "scale lost": ("modelopt", drop(f"{Q}_scale"), Q, f"its scale is missing: {Q}_scale"),
    "block's scale lost": ("deepseek", drop(f"{MLP}_scale_inv"), MLP, "its scale is missing"),
    "scale of another shape": ("deepseek", put(f"{MLP}_scale_inv", lambda x: x[:1]), f"{MLP}_scale_inv",
                               "blocks of [32, 32] need [2, 3]"),
    "scale of zeros": ("compressed fp8", put(f"{MLP}_scale", torch.zeros_like), f"{MLP}_scale", "is all zero"),
    "scale not finite": ("modelopt", put(f"{Q}_scale", lambda x: x / 0), f"{Q}_scale", "NaN or infinity"),
    "cast without its scale": ("modelopt", put(Q, lambda x: x.float().bfloat16()), f"{Q}_scale", "was it applied?"),
    "config forgets": ("modelopt", lambda f: change_json(f, "config.json", lambda c: c.pop("quantization_config")),
                       "config.json: quantization_config", "tensors are of 8 bits or fewer"),
    "config remembers": ("automodel", say(quantization_config={"quant_method": "modelopt"}),
                         "config.json: quantization_config", "all weights have 16 bits"),
    "damaged list": ("modelopt", quantisation(lambda x: x.update(ignore=["lm_head.\0backbone.pt_name_sentinel"])),
                     "config.json: quantization_config.ignore", "entries are damaged"),
    "not in the list": ("compressed int8", lambda f: change_weights(
        f, lambda x: (x.pop(f"{UP}_scale"), x.update({UP: torch.ones(x[UP].shape)}))), UP, "does not say so"),
    "in the list": ("modelopt", quantisation(lambda x: x["ignore"].append("*.q_proj")), Q, "says that it is not"),
    "lost from an INT8 folder": ("compressed int8", drop(f"{UP}_scale"), UP, "its scale is missing"),
}  # fmt: skip


@pytest.mark.parametrize("fault", ALONE)
def test_a_fault_of_a_folder_alone_is_named(bases: Path, tmp_path: Path, fault: str) -> None:
    program, damage, where, what = ALONE[fault]
    folder = written(bases, tmp_path, program)
    damage(folder)
    findings = found(folder)
    assert what in findings.get(where, ""), findings
    assert len(findings) <= 9, findings


BESIDE_BASE: dict[str, tuple[str, Callable[[Path], Any], str, str]] = {
    "experts swapped": ("megatron", swap(UP, UP.replace(".1.up", ".0.up")), UP, "is like the base model's"),
    "transposed square": ("automodel, llama", put("model.layers.0.self_attn.q_proj.weight", lambda x: x.T),
                          "model.layers.0.self_attn.q_proj.weight", "is transposed"),
    "transposed in shape": ("automodel", put(UP, lambda x: x.T.reshape(x.shape)), UP, "is transposed, in the shape"),
    "heads in another order": ("automodel, llama", put("model.layers.0.self_attn.k_proj.weight", lambda x: x.flip(0)),
                               "model.layers.0.self_attn.k_proj.weight", "is unlike the base model's"),
    "random": ("automodel", put(Q, lambda x: torch.randn_like(x) * x.std()), Q, "is unlike the base model's: cosine"),
    "scale twice": ("deepseek", put(f"{MLP}_scale_inv", lambda x: 2 * x), MLP, "is 2 times as large"),
    "inverse of the scale": ("modelopt", put(f"{Q}_scale", lambda x: 1 / x), Q, "times as large"),
    "scale taken off": ("compressed int8", put(f"{UP}_scale", torch.ones_like), UP, "times as large"),
    "epsilon": ("megatron", say(layer_norm_epsilon=1e-6), "config.json: layer_norm_epsilon", "in the base model 1e-05"),
    "router scale": ("megatron", say(routed_scaling_factor=2.5), "config.json: routed_scaling_factor", "is 2.5"),
    "template": ("automodel", stale_template, "chat_template.jinja", "renders conversation 0"),
    "no tokenizer": ("automodel", lambda f: (f / "tokenizer.json").unlink(), "tokenizer.json", "is missing"),
    "vocabulary": ("automodel", lambda f: change_json(f, "tokenizer.json", lambda x: x["model"]["merges"].pop()),
                   "tokenizer.json: model", "splits words"),
}  # fmt: skip


@pytest.mark.parametrize("fault", BESIDE_BASE)
def test_a_fault_beside_the_base_model_is_named(bases: Path, tmp_path: Path, fault: str) -> None:
    program, damage, where, what = BESIDE_BASE[fault]
    folder = written(bases, tmp_path, program)
    damage(folder)
    findings = found(folder, bases / WRITTEN[program][0])
    assert what in findings.get(where, ""), findings


A = "base_model.model.model.layers.0.mixer.in_proj.lora_A.weight"
ADAPTER_FAULTS: dict[str, tuple[Callable[[Path], Any], str, str]] = {
    "side lost": (drop(A), A.replace("_A.", "_B."), "has no A.weight beside it"),
    "rank": (put(A, lambda x: x[:3]), A, "has the rank 3, and adapter_config.json says 4"),
    "not a number": (put(A, lambda x: x * torch.nan), A, "NaN"),
    "all zero": (put(A.replace("_A.", "_B."), torch.zeros_like), A.replace("_A.", "_B."), "adds nothing"),
    "no alpha": (lambda f: change_json(f, "adapter_config.json", lambda x: x.pop("lora_alpha")), "adapter_config.json",
                 "its scale is unknown"),
}  # fmt: skip


@pytest.mark.parametrize("fault", ADAPTER_FAULTS)
def test_a_fault_of_an_adapter_is_named(adapters: tuple[Path, Path], tmp_path: Path, fault: str) -> None:
    damage, where, what = ADAPTER_FAULTS[fault]
    folder = copied(adapters[1], tmp_path / "adapter")
    damage(folder)
    assert what in found(folder)[where]


def test_a_type_of_model_that_is_not_known_is_not_judged_by_its_names(bases: Path, tmp_path: Path) -> None:
    folder = copied(bases / "llama", tmp_path / "folder")
    say(model_type="unheard")(folder)
    passport = by_itself(folder)
    assert not passport.findings and "does not know this type" in passport.parts[0].not_run[0]


def test_an_adapter_of_another_model_is_named(adapters: tuple[Path, Path], bases: Path) -> None:
    assert "adapter_config.json" in found(adapters[1], bases / "llama")


@pytest.mark.parametrize("program", ["modelopt", "compressed int8", "deepseek"])
def test_scales_that_are_lost_are_refused_wherever_a_model_is_loaded(
    bases: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], program: str
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = written(bases, tmp_path, program)
    name = MLP if program == "deepseek" else Q
    change_weights(folder, lambda x: x.pop(f"{name}_scale_inv" if program == "deepseek" else f"{name}_scale"))
    stages = [["super3", stage, "-c", "tiny", "run.model=./folder"] for stage in ("pretrain", "sft", "rl", "eval")]
    for words in (
        ["chat", "./folder"], ["serve", "./folder"], ["generate", "./folder", "q.txt", "--out", "a.jsonl"],
        ["export", "./folder", "out"], ["export", "./folder", "out", "--for", "vllm"],
        ["verify", "./folder", "--base", "./folder"], *stages,
    ):  # fmt: skip
        (tmp_path / "q.txt").write_text("Hello\n")
        assert main([*words, "--home", "home"] if words[0] != "super3" else [*words, "run.home=home"]) == 2, words
        assert "its scale is missing" in capfd.readouterr().err, words
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("look", [require_tensors, lambda path: load_model(path, ONLY_MADE)])
def test_scales_that_transformers_would_drop_are_refused(bases: Path, tmp_path: Path, look: Any) -> None:
    folder = written(bases, tmp_path, "modelopt")
    with pytest.raises(UserError, match=r"would drop the scales of \d+ tensors of few bits \(quant_method modelopt\)"):
        look(folder)


def test_weights_of_8_bits_that_transformers_knows_are_trained_and_saved_in_16(bases: Path, tmp_path: Path) -> None:
    folder = written(bases, tmp_path, "deepseek")
    model, before = load_model(folder, ONLY_MADE), load_model(bases / "llama", ONLY_MADE)
    ids = torch.arange(40)[None]
    assert float((model(ids).logits - before(ids).logits).abs().max()) < 0.1 < float(before(ids).logits.abs().max())
    save_model(model, folder, tmp_path / "saved")
    assert found(tmp_path / "saved") == found(tmp_path / "saved", bases / "llama") == {}


def test_a_page_is_written_where_it_is_asked_for(
    bases: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    written(bases, tmp_path, "megatron")
    shutil.copytree(bases / "super3_tiny", tmp_path / "base")
    words = ["verify", "folder", "--home", "home", "--base", "./base"]
    assert main([*words, "--page", "page"]) == 0
    told = json.loads((tmp_path / "page" / "passport.json").read_text())
    assert told["same"] and ["tensors", "104, all finite"] in told["parts"][0]["facts"]
    assert (tmp_path / "page" / "passport.html").is_file() and not (tmp_path / "folder" / "passport.json").exists()
    assert main([*words, "--alone"]) == 2
    assert "exclude each other" in capsys.readouterr().err
