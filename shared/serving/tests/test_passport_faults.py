"""Ninety more faults of exports, in four formats, are named by their tensor or key; sound exports raise no alarm.

test_passport.py and test_passport_imports.py plant those that are likely. These are further off: values that are only
rounded, keys that no logit shows, files that a loader would read beside the right ones.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from passport_support import (
    DENSE,
    WEIGHTS,
    as_gguf,
    change_json,
    change_weights,
    copied,
    in_shards,
    make,
    put,
    swap,
    weights,
    with_adapters,
    write_gguf,
)
from safetensors.torch import load_file, save_file

from nemotron_app.main import main
from nemotron_serving.passport.compare import verified
from nemotron_shared.artifacts import Artifact, Store
from nemotron_shared.system.errors import UserError

Tensors = dict[str, torch.Tensor]
Change = Callable[[Path], Any]
InFile = Callable[[Tensors, dict[str, Any]], Any]
MAMBA, MOE, HEADS = "backbone.layers.0.mixer.", "backbone.layers.1.mixer.", "backbone.layers.3.mixer."
HEAD, EMBEDDINGS, END = "lm_head.weight", "backbone.embeddings.weight", "backbone.norm_f.weight"
MTP = "mtp.layers.0.eh_proj.weight"
OTHER_TEMPLATE = "{% for message in messages %}[{{ message.role }}] {{ message.content }}{% endfor %}"

BEGINS = {
    "type": "TemplateProcessing",
    "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
    "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
    "special_tokens": {"<s>": {"id": "<s>", "ids": [2], "tokens": ["<s>"]}},
}
CUT = {"direction": "Right", "max_length": 64, "strategy": "LongestFirst", "stride": 0}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Super's kind with a block that predicts further tokens, Nano's with adapters, Llama, and Llama with ties."""
    torch.set_num_threads(1)
    place = tmp_path_factory.mktemp("models")
    super3 = make(place / "super", "super3_tiny")
    change_weights(super3, lambda x: x.update({MTP: torch.randn(64, 128)}))
    change_json(super3, "config.json", lambda config: config.update(num_nextn_predict_layers=1))
    make(place / "llama", "llama")
    make(place / "qwen", "qwen2")
    tied = make(place / "tied", "llama")
    change_weights(tied, lambda x: x.pop(HEAD))
    change_json(tied, "config.json", lambda config: config.update(tie_word_embeddings=True))
    store = with_adapters(place / "nano")
    for name, runtime in (("peft", "transformers"), ("unrolled", "vllm")):
        words = ["export", "trained", str(place / name), "--home", str(store.home), "--adapter", "--for", runtime]
        assert main([*words, "--no-verify"]) == 0
    return place


def found(models: Path, source: str, export: Path) -> dict[str, str]:
    """Findings by where they are; an error as one of the folder."""
    store = Store(models / "nano" / "home")
    model = store.resolve("trained") if source == "nano" else Artifact.external(models / source)
    try:
        passport = verified(store, export, model, run=False)
    except UserError as error:
        return {"error": str(error)}
    return {one.key: one.message for one in reversed(passport.findings)}


def say(file: str, **values: Any) -> Change:
    def change(folder: Path) -> None:
        if not (folder / file).exists():
            (folder / file).write_text("{}")
        change_json(folder, file, lambda told: told.update(values))

    return change


def edit(file: str, change: Callable[[Any], Any]) -> Change:
    return lambda folder: change_json(folder, file, change)


def write(file: str, text: str) -> Change:
    return lambda folder: (folder / file).write_text(text)


def both(*changes: Change) -> Change:
    return lambda folder: [change(folder) for change in changes]


def has(**values: Any) -> InFile:
    """Keys of a GGUF file; `__` for a dot."""
    return lambda _, told: told.update({name.replace("__", "."): value for name, value in values.items()})


def tokens(**values: Any) -> InFile:
    return lambda _, told: told.update({f"tokenizer.ggml.{name}": value for name, value in values.items()})


def holds(name: str, change: Callable[[torch.Tensor], torch.Tensor]) -> InFile:
    return lambda made, _: made.update({name: change(made[name])})


def longer(_: Tensors, told: dict[str, Any]) -> None:
    told["tokenizer.ggml.tokens"].append("<more>")
    told["tokenizer.ggml.token_type"].append(3)


def stacked(x: Tensors) -> None:
    """The experts in one matrix, as PEFT has them."""
    x[STACK] = torch.cat([x.pop(E2.replace(".2.", f".{number}.") + "A.weight") for number in range(8)])


def further_templates(folder: Path) -> None:
    (folder / "additional_chat_templates").mkdir()
    (folder / "additional_chat_templates" / "tool_use.jinja").write_text(OTHER_TEMPLATE)


def from_one(x: Tensors) -> None:
    for side in "AB":
        names = [E2.replace(".2.", f".{number}.") + f"{side}.weight" for number in range(8)]
        x.update(zip([*names[1:], names[0]], [x[name] for name in names], strict=True))


def two_merges(told: dict[str, Any]) -> None:
    merges = told["model"]["merges"]
    merges[0], merges[40] = merges[40], merges[0]


def shards(damage: Change) -> Change:
    return both(in_shards, damage)


def moved_in_the_index(folder: Path) -> None:
    """Two tensors, each said to be in the other's file."""

    def change(index: dict[str, Any]) -> None:
        places = index["weight_map"]
        first, second = sorted(places)[:2]
        places[first], places[second] = places[second], places[first]

    change_json(folder, "model.safetensors.index.json", change)


def in_both_shards(folder: Path) -> None:
    first, second = sorted(folder.glob("*.safetensors"))
    name, value = next(iter(load_file(first).items()))
    save_file(load_file(second) | {name: value + 1}, second, metadata={"format": "pt"})


def stale_single_file(folder: Path) -> None:
    """All shards as they should be, and an older file that transformers reads instead of them."""
    stale = {name: value * 1.01 for name, value in load_file(folder / WEIGHTS).items()}
    in_shards(folder)
    save_file(stale, folder / WEIGHTS, metadata={"format": "pt"})


C, T, G = "config.json", "tokenizer.json", "generation_config.json"
TC = "tokenizer_config.json"
FOLDER: dict[str, tuple[str, Change, str, str]] = {
    "two layers swapped": ("super", swap("backbone.layers.0.", "backbone.layers.2."), f"{MAMBA}in_proj.weight",
        "holds the values of backbone.layers.2"),
    "attention's blocks swapped": ("llama", swap("model.layers.0.self_attn.", "model.layers.1.self_attn."),
        "model.layers.0.self_attn.k_proj.weight", "holds the values of model.layers.1"),
    "convolution's bias dropped": ("super", weights(lambda x: x.pop(f"{MAMBA}conv1d.bias")), f"{MAMBA}conv1d.bias",
        "is missing"),
    "sign of D": ("super", put(f"{MAMBA}D", torch.neg), f"{MAMBA}D", "is -1 times as large"),
    "sign of A_log": ("super", put(f"{MAMBA}A_log", torch.neg), f"{MAMBA}A_log", "is -1 times as large"),
    "A for its logarithm": ("super", put(f"{MAMBA}A_log", torch.exp), f"{MAMBA}A_log", "differs in 8"),
    "norm is one more": ("super", put(END, lambda x: x - 1), END, "is 1 less everywhere"),
    "head is the embeddings": ("super", weights(lambda x: x.update({HEAD: x[EMBEDDINGS]})), HEAD,
        "holds the values of backbone.embeddings"),
    "ties cut": ("tied", weights(lambda x: x.update({HEAD: torch.randn(512, 64)})), HEAD,
        "is in the export, and not in the model"),
    "ties cut in the config": ("tied", say(C, tie_word_embeddings=False), f"{C}: tie_word_embeddings", "is false"),
    "one tensor rounded": ("super", put(f"{MOE}experts.2.up_proj.weight", lambda x: x.bfloat16().float()),
        f"{MOE}experts.2.up_proj.weight", "is rounded to bfloat16"),
    "a table of old": ("llama",
        weights(lambda x: x.update({"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(8)})),
        "model.layers.0.self_attn.rotary_emb.inv_freq", "not in the model"),
    "heads in another order": ("super", put(f"{HEADS}q_proj.weight", lambda x: x.roll(16, 0)), f"{HEADS}q_proj.weight",
        "has its rows in another order"),
    "router's rows in another order": ("super", put(f"{MOE}gate.weight", lambda x: x.flip(0)), f"{MOE}gate.weight",
        "has its rows in another order"),
    "parts of a projection in another order": ("super", put(f"{MAMBA}in_proj.weight", lambda x: torch.cat([x[128:],
        x[:128]])), f"{MAMBA}in_proj.weight", "has its rows in another order"),
    "prediction block lost": ("super", weights(lambda x: x.pop(MTP)), MTP, "is missing"),
    "type told alone": ("llama", say(C, dtype="bfloat16"), f"{C}: dtype", "bfloat16"),
    "kinds of layers": ("super", edit(C, lambda c: c["layers_block_type"].reverse()), f"{C}: layers_block_type",
        "is in another order"),
    "rotation": ("llama", edit(C, lambda c: c["rope_parameters"].update(rope_theta=5e5)), f"{C}: rope_parameters",
        "500000"),
    "shorter context": ("llama", say(C, max_position_embeddings=2048), f"{C}: max_position_embeddings", "is 2048"),
    "code beside": ("llama", both(say(C, auto_map={"AutoModelForCausalLM": "modeling.Other"}), write("modeling.py",
        "")), f"{C}: auto_map", "modeling.Other"),
    "class": ("llama", say(C, architectures=["MistralForCausalLM"]), f"{C}: architectures", "Mistral"),
    "merges in another order": ("super", edit(T, two_merges), f"{T}: model", "splits words"),
    "flag of a token": ("super", edit(T, lambda x: x["added_tokens"][5].update(lstrip=True)), f"{T}: added_tokens",
        "<|im_end|>"),
    "first token is added": ("super", edit(T, lambda x: x.update(post_processor=BEGINS)), f"{T}: post_processor",
        "TemplateProcessing"),
    "texts cut": ("super", edit(T, lambda x: x.update(truncation=CUT)), f"{T}: truncation", "64"),
    "special ids of old": ("super", say("special_tokens_map.json", eos_token="</s>"),
        "special_tokens_map.json: eos_token", "</s>"),
    "another model's template": ("super", write("chat_template.jinja", OTHER_TEMPLATE), "chat_template.jinja",
        "renders conversation 0 as"),
    "template of old beside": ("super", say(TC, chat_template=OTHER_TEMPLATE), f"{TC}: chat_template",
        "in the model null"),
    "further templates": ("super", further_templates, "chat_template.jinja", "is one of several: default, tool_use"),
    "sampling": ("super", say(G, top_k=1), f"{G}: top_k", "is 1"),
    "place in the index": ("super", shards(moved_in_the_index), "error",
        "weights lack backbone.embeddings.weight in model-00002"),
    "a tensor in two files": ("super", shards(in_both_shards), "error",
        "is in model-00001-of-00002.safetensors and in model-00002"),
    "a file of old": ("llama", stale_single_file, "error", "two sets of weights"),
    "adapter beside": ("super", say("adapter_config.json", r=4, lora_alpha=8, peft_type="LORA"), "error",
        "adapter_config.json makes it an adapter"),
}  # fmt: skip
GGUF: dict[str, tuple[str, InFile, str, str]] = {
    "rms epsilon": ("llama", has(attention__layer_norm_rms_epsilon=1e-5), "attention.layer_norm_rms_epsilon", "1e-06"),
    "fewer experts": ("super", has(expert_count=4), "expert_count", "is 4"),
    "weights of experts": ("super", has(expert_weights_norm=False), "expert_weights_norm", "is false"),
    "fewer layers": ("llama", has(block_count=1), "block_count", "is 1"),
    "first token": ("super", tokens(bos_token_id=1), "tokenizer.ggml.bos_token_id", "is 1"),
    "first token is added": ("super", tokens(add_bos_token=True), "tokenizer.ggml.add_bos_token", "is true"),
    "last token is added": ("super", tokens(add_eos_token=True), "tokenizer.ggml.add_eos_token", "is true"),
    "special token as text": ("super", lambda _, s: s["tokenizer.ggml.token_type"].__setitem__(5, 1),
        "tokenizer.ggml.token_type", "<|im_end|>"),
    "end of a turn": ("super", tokens(eot_token_id=7), "tokenizer.ggml.eot_token_id", "is 7"),
    "rotation": ("llama", has(rope__freq_base=5e5), "rope.freq_base", "is 500000"),
    "part that is rotated": ("llama", has(rope__dimension_count=8), "rope.dimension_count", "is 8"),
    "stretched rotation": ("llama", has(rope__scaling__type="linear", rope__scaling__factor=4.0),
        "rope.scaling.factor", "is 4.0"),
    "key heads": ("llama", has(attention__head_count_kv=4), "attention.head_count_kv", "is 4"),
    "inner size": ("llama", has(feed_forward_length=64), "feed_forward_length", "is 64"),
    "states": ("super", has(ssm__state_size=32), "ssm.state_size", "is 32"),
    "groups": ("super", has(ssm__group_count=4), "ssm.group_count", "is 4"),
    "scaled logits": ("llama", has(logit_scale=0.5), "logit_scale", "is 0.5"),
    "sliding window": ("llama", has(attention__sliding_window=128), "attention.sliding_window", "is 128"),
    "convolution's bias dropped": ("super", lambda x, _: x.pop("blk.0.ssm_conv1d.bias"), "blk.0.ssm_conv1d.bias",
        "is missing"),
    "sign of D": ("super", holds("blk.0.ssm_d", torch.neg), f"{MAMBA}D", "-1 times"),
    "norm is one more": ("super", holds("output_norm.weight", lambda x: x + 1), END, "is 1 more everywhere"),
    "head is the embeddings": ("super", lambda x, _: x.update({"output.weight": x["token_embd.weight"]}), HEAD,
        "holds the values of backbone.embeddings"),
    "rows moved that no rotation asks for": ("qwen", holds("blk.0.attn_q.weight", lambda x: x.roll(16, 0)),
        "model.layers.0.self_attn.q_proj.weight", "has its rows in another order"),
    "router's rows in another order": ("super", holds("blk.1.ffn_gate_inp.weight", lambda x: x.flip(0)),
        f"{MOE}gate.weight", "has its rows in another order"),
    "another model's template": ("super", has(tokenizer__chat_template=OTHER_TEMPLATE), "tokenizer.chat_template",
        "another text"),
    "more tokens": ("super", longer, "tokenizer.ggml.tokens", "513"),
    "another kind of tokenizer": ("super", tokens(model="llama"), "tokenizer.ggml.model", 'is "llama"'),
}  # fmt: skip
AC = "adapter_config.json"
ROOT = "base_model.model.model.layers."
IN = f"{ROOT}0.mixer.in_proj.lora_A.weight"
Q, K = f"{ROOT}3.mixer.q_proj.lora_A.weight", f"{ROOT}3.mixer.k_proj.lora_A.weight"
STACK, OTHER_STACK = f"{ROOT}1.mixer.experts.lora_A.weight", f"{ROOT}1.mixer.experts.base_layer.lora_A.weight"
E2 = f"{ROOT}1.mixer.experts.2.up_proj.lora_"
PEFT: dict[str, tuple[Change, str, str]] = {
    "rank": (say(AC, r=8), f"{AC}: r", "is 8, and in the model 4"),
    "rank of some layers": (say(AC, rank_pattern={"q_proj": 2}), f"{AC}: rank_pattern", "q_proj"),
    "alpha of some layers": (say(AC, alpha_pattern={"q_proj": 64}), f"{AC}: alpha_pattern", "q_proj"),
    "root of the rank": (say(AC, use_rslora=True), f"{AC}: use_rslora", "is true"),
    "magnitudes": (say(AC, use_dora=True), f"{AC}: use_dora", "is true"),
    "layers": (edit(AC, lambda x: x["target_modules"].pop()), f"{AC}: target_modules", "lacks"),
    "experts": (say(AC, target_parameters=None), f"{AC}: target_parameters", "is null"),
    "some layers alone": (say(AC, layers_to_transform=[0]), f"{AC}: layers_to_transform", "[0]"),
    "transposed": (say(AC, fan_in_fan_out=True), f"{AC}: fan_in_fan_out", "is true"),
    "query for key": (swap(Q, K), Q, "holds the values of"),
    "up for down": (swap(STACK, OTHER_STACK), STACK, "holds the values of"),
    "experts in another order": (put(STACK, lambda x: x.reshape(8, 4, -1).flip(0).reshape(x.shape)), STACK,
        "has its rows in another order"),
    "rounded": (put(IN, lambda x: x.bfloat16().float()), IN, "is rounded to bfloat16"),
    "scale in the weights too": (put(IN, lambda x: 2 * x), IN, "is 2 times as large"),
    "prefix lost": (weights(lambda x: x.update({IN.removeprefix("base_model."): x.pop(IN)})), IN, "is missing"),
    "stale tokenizer": (edit(T, two_merges), f"{T}: model", "splits words"),
}  # fmt: skip
UNROLLED: dict[str, tuple[Change, str, str]] = {
    "one side lost": (weights(lambda x: x.pop(f"{E2}B.weight")), f"{E2}B.weight", "is missing"),
    "expert lost": (weights(lambda x: [x.pop(f"{E2}{side}.weight") for side in "AB"]), f"{E2}A.weight", "is missing"),
    "an expert more": (weights(lambda x: x.update({f"{E2}A.weight".replace(".2.", ".8."): x[f"{E2}A.weight"]})),
        f"{E2}A.weight".replace(".2.", ".8."), "not in the model"),
    "experts counted from one": (weights(from_one), E2.replace(".2.", ".1.") + "A.weight", "differs"),
    "stacked": (weights(stacked), STACK, "not in the model"),
    "rank times experts": (say(AC, r=32), f"{AC}: r", "is 32, and in the model 4"),
    "another layer's experts": (swap(f"{ROOT}1.mixer.experts.2.", f"{ROOT}1.mixer.experts.3."), f"{E2}A.weight",
        "differs"),
    "A and B exchanged": (swap(f"{E2}A.", f"{E2}B."), f"{E2}A.weight", "it is transposed"),
    "sign": (put(f"{E2}B.weight", torch.neg), f"{E2}B.weight", "is -1 times"),
    "not trained": (put(f"{E2}B.weight", torch.zeros_like), f"{E2}B.weight", "is all zero"),
    "rounded": (put(f"{E2}B.weight", lambda x: x.bfloat16().float()), f"{E2}B.weight", "is rounded to bfloat16"),
    "layers": (edit(AC, lambda x: x["target_modules"].pop()), f"{AC}: target_modules", "lacks"),
    "alpha": (say(AC, lora_alpha=32), f"{AC}: lora_alpha", "is 32"),
}  # fmt: skip


def named(findings: dict[str, str], where: str, what: str) -> bool:
    return where in findings and what in findings[where]


@pytest.mark.parametrize("fault", FOLDER)
def test_a_fault_of_a_folder_is_named(models: Path, tmp_path: Path, fault: str) -> None:
    source, damage, where, what = FOLDER[fault]
    export = copied(models / source, tmp_path / "export")
    damage(export)
    findings = found(models, source, export)
    assert named(findings, where, what), findings


@pytest.mark.parametrize("fault", GGUF)
def test_a_fault_of_a_gguf_file_is_named(models: Path, tmp_path: Path, fault: str) -> None:
    source, change, where, what = GGUF[fault]
    kind, tensors, settings = as_gguf(models / source)
    change(tensors, settings)
    write_gguf(tmp_path / "m.gguf", kind, tensors, settings)
    findings = found(models, source, tmp_path / "m.gguf")
    assert named(findings, where, what), findings


@pytest.mark.parametrize(
    ("layout", "fault"), [*(("peft", one) for one in PEFT), *(("unrolled", one) for one in UNROLLED)]
)
def test_a_fault_of_an_adapter_is_named(models: Path, tmp_path: Path, layout: str, fault: str) -> None:
    damage, where, what = (PEFT if layout == "peft" else UNROLLED)[fault]
    export = copied(models / layout, tmp_path / "export")
    damage(export)
    findings = found(models, "nano", export)
    assert named(findings, where, what), findings


SOUND: tuple[tuple[str, str, dict[str, Any] | None], ...] = (
    ("mistral", "bfloat16", None), ("qwen3", "float16", None), ("phi3", "", None), ("olmo2", "bfloat16", None),
    ("granite", "", None), ("gemma2", "bfloat16", None), ("gemma3_text", "", None), ("starcoder2", "float16", None),
    ("stablelm", "", None), ("cohere", "bfloat16", None), ("gpt_neox", "", None), ("mamba2", "bfloat16", None),
    ("mixtral", "", None), ("qwen3_moe", "bfloat16", None), ("deepseek_v3", "bfloat16", None),
    ("tied", "float16", None), ("nano3_tiny", "bfloat16", DENSE), ("super3_tiny", "float32", {"moe_latent_size": None}),
    ("super3_tiny", "bfloat16", {"n_group": 2, "topk_group": 1}), ("nano3_tiny", "", {"routed_scaling_factor": 2.5}),
)  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "dtype", "overrides"),
    [pytest.param(*one, marks=() if one[0] in ("mixtral", "tied") else pytest.mark.slow) for one in SOUND],
)
def test_a_sound_export_raises_no_alarm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, dtype: str, overrides: dict[str, Any] | None
) -> None:
    monkeypatch.chdir(tmp_path)
    torch.set_num_threads(1)
    make(tmp_path / "model", kind, overrides)
    in_shards(tmp_path / "model")
    assert main(["export", "./model", "out", "--home", "home", *(["--dtype", dtype] if dtype else [])]) == 0
    told = json.loads((tmp_path / "out" / "passport.json").read_text())
    assert [part["verdict"] for part in told["parts"]] == ["the same", "the same", "the same", "not looked at"]


@pytest.mark.parametrize(
    ("kind", "overrides"),
    [("llama", None), ("nano3_tiny", DENSE), pytest.param("qwen2", None, marks=pytest.mark.slow)],
)
def test_sound_exports_of_an_adapter_raise_no_alarm(
    tmp_path: Path, kind: str, overrides: dict[str, Any] | None
) -> None:
    store = with_adapters(tmp_path, kind, overrides)
    layouts = [["--adapter"], ["--adapter", "--for", "vllm"], ["--dtype", "bfloat16"], ["--for", "sglang"]]
    for number, words in enumerate(layouts):
        out = tmp_path / f"{number}"
        assert main(["export", "trained", str(out), "--home", str(store.home), *words]) == 0
        assert json.loads((out / "passport.json").read_text())["same"]


BROKEN: dict[str, tuple[str, str, str]] = {
    "no mapping of defaults": (G, "[]", "not a mapping of settings"),
    "no mapping of tokens": (T, "[]", "not a mapping of settings"),
    "no mapping of special tokens": ("special_tokens_map.json", "null", "not a mapping of settings"),
    "no text": (TC, "\0", "not valid JSON"),
    "no config": (C, "[]", "not a mapping of a model's settings"),
    "a passport of another kind": ("passport.json", "[]", "not a mapping of settings"),
    "a pickle in the index": (
        "model.safetensors.index.json",
        '{"weight_map": {"a": "model.bin"}}',
        "two sets of weights",
    ),
    "a file outside": ("model.safetensors.index.json", '{"weight_map": {"a": "../b.safetensors"}}', "not of the form"),
}


@pytest.mark.parametrize("fault", BROKEN)
def test_a_broken_file_is_one_message(
    models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], fault: str
) -> None:
    file, text, said = BROKEN[fault]
    export = copied(models / "llama", tmp_path / "export")
    (export / file).write_text(text)
    words = ["verify", str(export), "--home", str(tmp_path / "home"), "--no-run", "--against", str(models / "llama")]
    assert main(words) == 2
    assert said in capsys.readouterr().err


def test_further_templates_are_exported_and_compared(models: Path, tmp_path: Path) -> None:
    model, out = copied(models / "llama", tmp_path / "model"), tmp_path / "out"
    further_templates(model)
    words = ["export", str(model), str(out), "--home", str(tmp_path / "home")]
    assert main(words) == 0
    file = out / "additional_chat_templates" / "tool_use.jinja"
    assert file.read_text() == OTHER_TEMPLATE and json.loads((out / "passport.json").read_text())["same"]
    file.write_text(OTHER_TEMPLATE.upper())
    told = {one.key: one.message for one in verified(Store(tmp_path / "home"), out, Artifact.external(model)).findings}
    assert told == {"chat_template.jinja": "is another text for tool_use"}
    (file.parent / "rag.jinja").write_text("")
    assert main([*words, "--force"]) == 2
    (file.parent / "rag.jinja").unlink()
    assert main([*words, "--force"]) == 0 and file.read_text() == OTHER_TEMPLATE


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "a width below zero": ({"hidden_size": -64}, "negative dimension"),
    "a width that no memory holds": ({"hidden_size": 10**30}, "no model can be made of it"),
    "a setting that is no number": ({"rms_norm_eps": float("nan")}, "rms_norm_eps: is nan"),
}


@pytest.mark.parametrize("fault", WRONG)
def test_a_config_of_no_model_is_found_without_another_one(
    models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], fault: str
) -> None:
    values, said = WRONG[fault]
    export = copied(models / "llama", tmp_path / "export")
    say(C, **values)(export)
    assert main(["verify", str(export), "--home", str(tmp_path / "home"), "--alone"]) == 1
    assert said in capsys.readouterr().out
    (export / T).write_text('{"model": 7}')
    assert main(["verify", str(export), "--home", str(tmp_path / "home"), "--alone"]) == 1
    assert "tokenizer.json: cannot be loaded" in capsys.readouterr().out
