"""A passport names each planted fault by its tensor or key, and says nothing about sound exports."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from passport_support import (
    WEIGHTS,
    as_gguf,
    change_json,
    change_weights,
    copied,
    make,
    write_gguf,
)

from nemotron_app.main import main
from nemotron_engines.modeling.stored import stored_in
from nemotron_serving.passport.compare import verified
from nemotron_serving.passport.numbers import (
    GREEDY,
    SAME,
    Limit,
    Readings,
    allowed_for,
    compare_numbers,
    compare_task,
)
from nemotron_serving.passport.parts import NUMBERS, TASK, Part, Passport
from nemotron_serving.passport.rows import Rows
from nemotron_shared.artifacts import Artifact, Store
from nemotron_shared.system.errors import UserError

MOE, ATTENTION, MAMBA = "backbone.layers.1.mixer.", "backbone.layers.3.mixer.", "backbone.layers.0.mixer."
UP, DOWN = f"{MOE}experts.1.up_proj.weight", f"{MOE}experts.1.down_proj.weight"
BIAS = f"{MOE}gate.e_score_correction_bias"
Tensors = dict[str, torch.Tensor]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    return make(tmp_path_factory.mktemp("passport") / "model", "super3_tiny")


def passport(export: Path, model: Path, *, run: bool = False) -> Passport:
    return verified(Store(export.parent / "home"), export, Artifact.external(model), run=run)


def found(export: Path, model: Path) -> dict[str, str]:
    """Findings by where they are."""
    return {finding.key: finding.message for finding in passport(export, model).findings}


def swap(first: str, second: str) -> Callable[[Tensors], Any]:
    def change(tensors: Tensors) -> None:
        tensors[first], tensors[second] = tensors[second], tensors[first]

    return change


def put(name: str, value: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Tensors], Any]:
    return lambda tensors: tensors.update({name: value(tensors[name])})


def nudged(tensor: torch.Tensor) -> torch.Tensor:
    changed = tensor.clone()
    changed[0] += 0.01
    return changed


TENSOR_FAULTS: dict[str, tuple[Callable[[Tensors], Any], str, str]] = {
    "dropped expert": (lambda x: x.pop(UP), UP, "is missing"),
    "dropped router bias": (lambda x: x.pop(BIAS), BIAS, "is missing"),
    "router bias zeroed": (put(BIAS, torch.zeros_like), BIAS, "is all zero"),
    "router bias of one expert": (put(BIAS, nudged), BIAS, "differs in 1 of 8 values"),
    "swapped experts": (swap(UP, UP.replace(".1.up", ".0.up")), UP, "holds the values of"),
    "swapped layers": (swap(f"{MAMBA}in_proj.weight", "backbone.layers.2.mixer.in_proj.weight"),
                       f"{MAMBA}in_proj.weight", "holds the values of backbone.layers.2"),
    "up and down swapped": (swap(UP, DOWN), UP, "it is transposed"),
    "transposed projection": (put(f"{ATTENTION}q_proj.weight", torch.t), f"{ATTENTION}q_proj.weight", "is transposed"),
    "transposed, in the right shape": (put(DOWN, lambda x: x.T.reshape(x.shape)), DOWN, "is transposed, in the shape"),
    "factor": (put(f"{MAMBA}A_log", lambda x: x * 1.01), f"{MAMBA}A_log", "is 1.01 times"),
    "time steps": (put(f"{MAMBA}dt_bias", nudged), f"{MAMBA}dt_bias", "differs in 1"),
    "norm": (put("backbone.norm_f.weight", torch.ones_like), "backbone.norm_f.weight", "differs"),
    "invented": (lambda x: x.update({"lm_head.bias": torch.zeros(512)}), "lm_head.bias", "not in the model"),
    "renamed": (lambda x: x.update({f"{MOE}experts.8.up_proj.weight": x.pop(UP)}), UP, "is missing"),
    "not a number": (put(UP, lambda x: x * torch.nan), UP, "NaN"),
    "one tensor in bfloat16": (put(UP, torch.Tensor.bfloat16), UP, "is stored as BF16, and config.json says float32"),
    "vocabulary cut": (put("lm_head.weight", lambda x: x[:500]), "lm_head.weight", "has the shape [500, 64]"),
}  # fmt: skip


@pytest.mark.parametrize("fault", TENSOR_FAULTS)
def test_a_fault_of_tensors_is_named(model: Path, tmp_path: Path, fault: str) -> None:
    change, where, what = TENSOR_FAULTS[fault]
    export = copied(model, tmp_path / "export")
    change_weights(export, change)
    findings = found(export, model)
    assert what in findings[where]
    assert len(findings) <= 2


def test_a_file_that_is_cut_off_is_one_error(model: Path, tmp_path: Path) -> None:
    export = copied(model, tmp_path / "export")
    content = (export / WEIGHTS).read_bytes()
    (export / WEIGHTS).write_bytes(content[:-100])
    with pytest.raises(UserError, match="cut off"):
        passport(export, model)


CONFIG_FAULTS: dict[str, tuple[dict[str, Any], str]] = {
    "epsilon": ({"layer_norm_epsilon": 1e-6}, "is 1e-06, and in the model 1e-05"),
    "router scale": ({"routed_scaling_factor": 2.5}, "is 2.5"),
    "router norm": ({"norm_topk_prob": False}, "is false"),
    "experts of a token": ({"num_experts_per_tok": 1}, "is 1, and in the model 2"),
    "groups": ({"n_groups": 4}, "is 4"),
    "activation": ({"mlp_hidden_act": "silu"}, 'is "silu"'),
    "time steps": ({"time_step_limit": [0.0, 0.1]}, "is [0.0, 0.1]"),
    "limit": ({"max_position_embeddings": 8192}, "is 8192, and in the model 4096"),
    "end": ({"eos_token_id": 4}, "is 4, and in the model 5"),
    "begin": ({"bos_token_id": 3}, "is 3"),
    "padding out of range": ({"pad_token_id": 600}, "is 600"),
    "head": ({"tie_word_embeddings": True}, "is true"),
    "chunks": ({"chunk_size": 16}, "is 16"),
    "prediction block promised": ({"num_nextn_predict_layers": 1}, "promises 1 block that predicts further tokens"),
}


@pytest.mark.parametrize("fault", CONFIG_FAULTS)
def test_a_fault_of_the_config_is_named(model: Path, tmp_path: Path, fault: str) -> None:
    changed, what = CONFIG_FAULTS[fault]
    export = copied(model, tmp_path / "export")
    change_json(export, "config.json", lambda config: config.update(changed))
    assert what in found(export, model)[f"config.json: {next(iter(changed))}"]


def test_a_type_that_the_weights_have_not_is_named(model: Path, tmp_path: Path) -> None:
    export = copied(model, tmp_path / "export")
    change_weights(export, lambda x: x.update({name: value.half() for name, value in x.items()}))
    assert "F16, and config.json says float32" in next(iter(found(export, model).values()))


def other_order(tokenizer: dict[str, Any]) -> None:
    vocabulary = tokenizer["model"]["vocab"]
    first, second = [name for name, number in vocabulary.items() if number in (300, 301)]
    vocabulary[first], vocabulary[second] = vocabulary[second], vocabulary[first]


TOKEN_FAULTS: dict[str, tuple[str, Callable[[dict[str, Any]], Any], str, str]] = {
    "stale vocabulary": ("tokenizer.json", other_order, "tokenizer.json: model", "gives 2 tokens other ids"),
    "stale merges": ("tokenizer.json", lambda x: x["model"]["merges"].pop(), "tokenizer.json: model", "splits words"),
    "digits together": ("tokenizer.json", lambda x: x["pre_tokenizer"]["pretokenizers"].pop(0),
                        "tokenizer.json: pre_tokenizer", "in the model"),
    "special token as text": ("tokenizer.json", lambda x: x["added_tokens"].pop(5), "tokenizer.json: added_tokens", ""),
    "begin is added": ("tokenizer.json", lambda x: x.update(normalizer={"type": "NFC"}), "tokenizer.json: normalizer",
                       'is {"type": "NFC"}'),
    "end of turns": ("tokenizer_config.json", lambda x: x.update(eos_token="</s>"), "tokenizer_config.json: eos_token",
                     'is "</s>", and in the model "<|im_end|>"'),
    "padding": ("tokenizer_config.json", lambda x: x.update(pad_token="<|im_end|>"), "tokenizer_config.json: pad_token",
                'is "<|im_end|>"'),
    "limit": ("tokenizer_config.json", lambda x: x.update(model_max_length=512),
              "tokenizer_config.json: model_max_length", "is 512"),
    "generation's end": ("generation_config.json", lambda x: x.update(eos_token_id=3),
                         "generation_config.json: eos_token_id", ""),
    "temperature": ("generation_config.json", lambda x: x.update(do_sample=True, temperature=0.7),
                    "generation_config.json: temperature", "is 0.7, and in the model null"),
}  # fmt: skip


@pytest.mark.parametrize("fault", TOKEN_FAULTS)
def test_a_fault_of_tokens_is_named(model: Path, tmp_path: Path, fault: str) -> None:
    file, change, where, what = TOKEN_FAULTS[fault]
    export = copied(model, tmp_path / "export")
    change_json(export, file, change)
    assert what in found(export, model)[where]


def test_an_end_that_no_answer_reaches_is_named(model: Path, tmp_path: Path) -> None:
    export = copied(model, tmp_path / "export")
    change_json(export, "generation_config.json", lambda values: values.update(eos_token_id=3))
    findings = passport(export, model).findings
    assert "closes an answer with <|im_end|> (5): no answer would end" in " ".join(one.message for one in findings)


@pytest.mark.parametrize(
    ("old", "new", "what"),
    [("{%- if tools %}", "{%- if tools  %}", "is another text, and renders 4 conversations alike"),
     ("message.role + '\\n'", "message.role", "renders conversation 0 as"),
     (None, None, "is missing")],
)  # fmt: skip
def test_another_template_is_named_with_what_it_renders(
    model: Path, tmp_path: Path, old: str | None, new: str | None, what: str
) -> None:
    export = copied(model, tmp_path / "export")
    file = export / "chat_template.jinja"
    if old is None or new is None:
        file.unlink()
    else:
        assert old in file.read_text()
        file.write_text(file.read_text().replace(old, new))
    assert what in found(export, model)["chat_template.jinja"]


def test_a_tokenizer_that_is_not_there_is_named(model: Path, tmp_path: Path) -> None:
    export = copied(model, tmp_path / "export")
    (export / "tokenizer.json").unlink()
    assert found(export, model)["tokenizer.json"] == "is missing in the export"


def gguf_of(model: Path, file: Path, change: Callable[[Tensors, dict[str, Any]], Any] | None = None,
            dtype: str = "F32") -> Path:  # fmt: skip
    kind, tensors, settings = as_gguf(model)
    if change:
        change(tensors, settings)
    write_gguf(file, kind, tensors, settings, dtype)
    return file


def not_rotated(tensors: Tensors, settings: dict[str, Any], model: Path) -> None:
    from safetensors.torch import load_file

    tensors["blk.3.attn_q.weight"] = load_file(model / WEIGHTS)[f"{ATTENTION}q_proj.weight"]


GGUF_FAULTS: dict[str, tuple[Callable[[Tensors, dict[str, Any]], Any], str, str]] = {
    "experts swapped": (lambda x, _: x.update({"blk.1.ffn_up_exps.weight": x["blk.1.ffn_up_exps.weight"].flip(0)}),
                        UP, "holds the values of"),
    "up for down": (lambda x, _: x.update({"blk.1.ffn_up_exps.weight": x["blk.1.ffn_down_exps.weight"]}),
                    UP, "it is transposed"),
    "stack missing": (lambda x, _: x.pop("blk.1.ffn_up_exps.weight"), "blk.1.ffn_up_exps.weight", "is missing"),
    "router bias missing": (lambda x, _: x.pop("blk.1.exp_probs_b.bias"), "blk.1.exp_probs_b.bias", "is missing"),
    "A without its sign": (lambda x, _: x.update({"blk.0.ssm_a": -x["blk.0.ssm_a"]}), f"{MAMBA}A_log", "-1 times"),
    "A not exponentiated": (lambda x, _: x.update({"blk.0.ssm_a": (-x["blk.0.ssm_a"]).log()}), f"{MAMBA}A_log", ""),
    "query and key swapped": (lambda x, _: x.update({"blk.3.attn_k.weight": x["blk.3.attn_v.weight"]}),
                              f"{ATTENTION}k_proj.weight", ""),
    "more than the model": (lambda x, _: x.update({"blk.9.attn_norm.weight": torch.ones(64)}),
                            "blk.9.attn_norm.weight", "not in the model"),
    "epsilon": (lambda _, s: s.update({"attention.layer_norm_epsilon": 1e-6}), "attention.layer_norm_epsilon", "1e-05"),
    "context": (lambda _, s: s.update(context_length=2**20), "context_length", "is 1048576, and in the model 4096"),
    "router scale": (lambda _, s: s.update(expert_weights_scale=2.5), "expert_weights_scale", "is 2.5"),
    "router scale missing": (lambda _, s: s.pop("expert_weights_scale"), "expert_weights_scale", "is null"),
    "experts of a token": (lambda _, s: s.update(expert_used_count=1), "expert_used_count", "is 1"),
    "end": (lambda _, s: s.update({"tokenizer.ggml.eos_token_id": 3}), "tokenizer.ggml.eos_token_id", "is 3"),
    "template": (lambda _, s: s.pop("tokenizer.chat_template"), "tokenizer.chat_template", "is missing"),
    "pre-tokenizer": (lambda _, s: s.update({"tokenizer.ggml.pre": "gpt-2"}), "tokenizer.ggml.pre", "splits as smollm"),
    "tokens": (lambda _, s: s["tokenizer.ggml.tokens"].reverse(), "tokenizer.ggml.tokens", "of which 512 differ"),
    "merges": (lambda _, s: s["tokenizer.ggml.merges"].__delitem__(slice(9, None)), "tokenizer.ggml.merges",
               "are others"),
}  # fmt: skip


@pytest.mark.parametrize("fault", GGUF_FAULTS)
def test_a_fault_of_a_gguf_file_is_named(model: Path, tmp_path: Path, fault: str) -> None:
    change, where, what = GGUF_FAULTS[fault]
    assert what in found(gguf_of(model, tmp_path / "m.gguf", change), model)[where]


def test_rows_that_were_not_moved_for_rotation_are_named(model: Path, tmp_path: Path) -> None:
    file = gguf_of(model, tmp_path / "m.gguf", lambda x, s: not_rotated(x, s, model))
    assert "in the model's order" in found(file, model)[f"{ATTENTION}q_proj.weight"]
    content = file.read_bytes()
    file.write_bytes(content[: len(content) // 2])
    with pytest.raises(UserError, match="cut off"):
        passport(file, model)


@pytest.mark.parametrize("kind", ["super3_tiny", "nano3_tiny", "llama", "qwen2"])
@pytest.mark.parametrize("dtype", ["F32", "BF16", "F16", "Q8_0"])
def test_a_sound_gguf_file_raises_no_alarm(tmp_path: Path, kind: str, dtype: str) -> None:
    model = make(tmp_path / "model", kind)
    assert found(gguf_of(model, tmp_path / "m.gguf", dtype=dtype), model) == {}


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [("super3_tiny", None), ("super3_tiny", "bfloat16"), ("nano3_tiny", "float16"), ("llama", "bfloat16"),
     ("qwen2", None), ("gpt2", "bfloat16")],
)  # fmt: skip
def test_a_sound_export_raises_no_alarm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, dtype: str | None
) -> None:
    monkeypatch.chdir(tmp_path)
    make(tmp_path / "model", kind)
    asked = [] if dtype is None else ["--dtype", dtype]
    assert main(["export", "./model", "out", "--home", "home", *asked]) == 0
    assert (tmp_path / "out" / "passport.html").is_file()
    told = json.loads((tmp_path / "out" / "passport.json").read_text())
    assert told["same"]
    assert [part["verdict"] for part in told["parts"]] == ["the same", "the same", "the same", "not looked at"]
    held = {one.dtype for one in stored_in(tmp_path / "out").values()}
    assert {"bfloat16": "BF16", "float16": "F16", None: "F32"}[dtype] in held


def test_the_command_tells_by_its_exit_code_and_on_a_page(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    copied(model, tmp_path / "model")
    export = copied(model, tmp_path / "export")
    words = ["verify", "export", "--home", "home", "--against", "./model"]
    assert main([*words, "--no-run"]) == 0
    assert json.loads((export / "passport.json").read_text())["same"]
    change_weights(export, TENSOR_FAULTS["swapped experts"][0])
    capsys.readouterr()
    assert main(words) == 1
    assert f"{UP}: holds the values of" in capsys.readouterr().out
    page = (export / "passport.html").read_text()
    assert f"<code>{UP}</code>" in page and "in transformers alone, because tensors differ" in page
    assert main(["verify", "export", "--home", "home"]) == 2  # a folder's model has no name in a store
    assert "--against MODEL" in capsys.readouterr().err
    change_json(export, "passport.json", lambda told: told["source"].update(reference="trained:v1"))
    before = (export / "passport.json").read_bytes()
    assert main(words) == 1  # it was not made from this one, and stays the export of the other
    assert (export / "passport.json").read_bytes() == before
    assert main(["verify", "absent", "--home", "home"]) == 2
    assert main(["verify", "./model", "--home", "home", "--alone"]) == 0
    assert not (tmp_path / "model" / "passport.json").exists()
    change_json(export, "config.json", lambda config: config.update(num_nextn_predict_layers=1))
    assert main(["verify", "export", "--home", "home", "--alone"]) == 1
    assert "num_nextn_predict_layers: promises 1 block" in capsys.readouterr().out


def test_an_export_that_differs_is_not_written(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    copied(model, tmp_path / "model")
    monkeypatch.setattr("nemotron_serving.layouts.DTYPES", {"float32": "F32", "bfloat16": "F16", "float16": "F16"})
    assert main(["export", "./model", "out", "--home", "home", "--dtype", "bfloat16"]) == 2
    assert "the export is not its model: " in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


EXPERTS = (UP, UP.replace(".1.up", ".0.up"))
LAYER_FAULTS: dict[str, tuple[Callable[[Tensors], Any], str]] = {
    "embeddings": (put("backbone.embeddings.weight", lambda x: x * 1.01), "embeddings"),
    "transposed projection": (put(f"{ATTENTION}q_proj.weight", lambda x: x.T.reshape(x.shape)), "layer 3"),
    "swapped experts": (swap(*EXPERTS), "layer 1"),
    "router bias": (put(BIAS, lambda x: x.flip(0)), "layer 1"),
    "time steps": (put(f"{MAMBA}dt_bias", lambda x: x + 0.1), "layer 0"),
    "rounded": (put(f"{ATTENTION}v_proj.weight", lambda x: x.bfloat16().float()), "layer 3"),
    "epsilon": (lambda x: None, "layer 0"),
}


@pytest.mark.parametrize("fault", LAYER_FAULTS)
def test_the_first_layer_that_differs_is_named(model: Path, tmp_path: Path, fault: str) -> None:
    change, layer = LAYER_FAULTS[fault]
    export = copied(model, tmp_path / "export")
    change_weights(export, change)
    if fault == "epsilon":
        change_json(export, "config.json", lambda config: config.update(layer_norm_epsilon=1e-3))
    findings = passport(export, model, run=True).parts[2].findings
    named = [one for one in findings if "is the first whose output differs" in one.message]
    assert [one.key.partition(" (")[0] for one in named] == [f"transformers, {layer}"]


def test_numbers_and_held_out_rows_that_are_worse_are_found() -> None:
    draw = np.random.default_rng(0)
    logits = draw.normal(size=(9, 30))
    logps = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    bits = np.stack([draw.uniform(5, 9, 40), np.full(40, 7.0)], 1)
    before = Readings({"row": logps}, {"row": [1] * GREEDY}, bits)
    other = np.roll(logps, 1, 1)
    after = Readings({"row": other}, {"row": [1] * GREEDY}, bits + np.array([0.5, 0.0]))
    rows = Rows("data:v1", [], [], "test", [])
    for made, found in ((before, 0), (after, 1)):
        numbers, task = Part(NUMBERS), Part(TASK)
        compare_numbers("transformers", before, made, allowed_for({"F32"}, before, None), numbers)
        compare_task("transformers", before, made, rows, task)
        assert (len(numbers.findings), len(task.findings)) == (found, found)
    assert "paired 95% interval +0.0714 to +0.0714" in dict(task.facts)["transformers, difference"]
    not_finite = Readings({"row": other * np.nan}, {"row": [1] * GREEDY}, bits)
    part = Part(NUMBERS)
    compare_numbers("vllm", before, not_finite, Limit(1.0), part)
    assert part.findings[0].message == "gives no number for some tokens"
    assert allowed_for({"BF16"}, before, after).kl > SAME == allowed_for({"F32"}, before, after).kl
