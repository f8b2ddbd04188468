"""Adapters: merged at their own scale, in the layout that each runtime wants, and never one projection for another."""

import json
from pathlib import Path

import pytest
import torch
from passport_support import change_json, change_weights, copied, make, publish, with_adapters
from safetensors.torch import load_file

from nemotron_app.main import main
from nemotron_engines.lora.layout import pairs_in, published
from nemotron_engines.modeling.stored import stored_in
from nemotron_serving.passport.compare import verified
from nemotron_serving.passport.parts import CONFIG, Part
from nemotron_serving.passport.settings import compare_adapters
from nemotron_shared.artifacts import Parent, Store

EXPERT = "base_model.model.model.layers.1.mixer.experts.{}.{}_proj.lora_A.weight"


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return with_adapters(tmp_path_factory.mktemp("adapters"))


def findings(store: Store, export: Path) -> dict[str, str]:
    passport = verified(store, export, store.resolve("trained"), run=False)
    return {finding.key: finding.message for finding in passport.findings}


def export(store: Store, folder: Path, *words: str) -> Path:
    assert main(["export", "trained", str(folder), "--home", str(store.home), *words]) == 0
    return folder


def test_a_merge_at_another_scale_is_named(store: Store, tmp_path: Path) -> None:
    whole = export(store, tmp_path / "whole")
    told = json.loads((whole / "passport.json").read_text())
    assert any(fact[0] == "merged" for fact in told["parts"][0]["facts"]) and told["same"]
    model = store.resolve("trained").path
    wrong = copied(model, tmp_path / "wrong")
    change_json(wrong / "adapter", "adapter_config.json", lambda config: config.update(lora_alpha=16))
    place = Store(store.home)
    before = place.resolve("base")
    (wrong / "manifest.json").unlink()
    other = publish(place, wrong, "other", parents=[Parent(before.reference, before.manifest.digest, "model")])
    passport = verified(place, whole, other, run=False)
    named = {one.key: one.message for one in passport.findings}
    assert "at a scale of 2, not 4 (lora_alpha / r)" in named["backbone.layers.0.mixer.in_proj.weight"]


def test_a_weight_that_no_adapter_changed_is_the_base_models(store: Store, tmp_path: Path) -> None:
    whole = export(store, tmp_path / "whole", "--dtype", "bfloat16")
    name = "backbone.norm_f.weight"
    change_weights(whole, lambda x: x.update({name: x[name] * 2}))
    assert findings(store, whole)[name] in ("is 2 times as large", "has no adapter, and is not the base model's")


@pytest.mark.parametrize("runtime", ["transformers", "vllm"])
def test_an_adapter_alone_is_the_one_that_was_trained(store: Store, tmp_path: Path, runtime: str) -> None:
    folder = export(store, tmp_path / "out", "--adapter", "--for", runtime)
    names = load_file(folder / "adapter_model.safetensors").keys()
    assert (EXPERT.format(0, "up") in names) == (runtime == "vllm")
    assert findings(store, folder) == {}
    change_json(folder, "adapter_config.json", lambda config: config.update(lora_alpha=4))
    assert findings(store, folder) == {"adapter_config.json: lora_alpha": "is 4, and in the model 8"}


def test_pairs_of_experts_add_what_training_merged(store: Store) -> None:
    before, after = (stored_in(store.resolve(name).path) for name in ("base", "trained"))
    adapter = store.resolve("trained").path / "adapter"
    seen = 0
    for pair in pairs_in(store.resolve("trained").path, adapter):
        for number, (a, b) in enumerate(pair.factors(stored_in(adapter))):
            name = published(pair.layer, after, number if pair.experts else None)
            assert name is not None
            torch.testing.assert_close(before[name].values() + pair.scale * b @ a, after[name].values())
            seen += bool(pair.experts)
    assert seen > 16


@pytest.mark.parametrize(("trained_on", "named"), [("org/base", 1), (None, 0)])
def test_another_base_model_is_named_where_the_right_one_is_known(
    tmp_path: Path, trained_on: str | None, named: int
) -> None:
    for name, base in (("source", trained_on), ("target", "org/other")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "adapter_config.json").write_text(json.dumps({"r": 4, "base_model_name_or_path": base}))
    part = Part(CONFIG)
    compare_adapters(tmp_path / "source", tmp_path / "target", part)
    assert len(part.findings) == named and len(part.not_run) == 1 - named
    assert "org/other" in str([*part.findings, *part.not_run])


@pytest.mark.parametrize("other", ["down", "up"])
def test_other_experts_and_projections_are_named(store: Store, tmp_path: Path, other: str) -> None:
    folder = export(store, tmp_path / "out", "--adapter", "--for", "sglang", "--no-verify")
    first, second = EXPERT.format(0, "up"), EXPERT.format(1 if other == "up" else 0, other)

    def swap(tensors: dict[str, torch.Tensor]) -> None:
        tensors[first], tensors[second] = tensors[second], tensors[first]

    change_weights(folder, swap)
    assert findings(store, folder).keys() == {first, second}


def test_layouts_that_exclude_each_other_are_refused(
    store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NEMOTRON_ENGINES", str(tmp_path / "none"))
    for words, said in (
        (["--adapter", "--for", "transformers", "--for", "vllm"], "export twice, into two folders"),
        (["--adapter", "--for", "llama.cpp"], "an adapter alone is not converted"),
        (["--adapter", "--dtype", "bfloat16"], "an adapter keeps its type"),
        (["--for", "llama.cpp"], "nemotron engine install llama_cpp"),
        (["--for", "llama.cpp", "--quantize", "Q8_0"], "nemotron engine install libllama"),
        (["--quantize", "Q8_0"], "add --for llama.cpp"),
        (["--for", "megatron"], "nemotron engine install megatron"),
        (["--adapter", "--for", "megatron"], "an adapter alone is not converted"),
    ):
        assert main(["export", "trained", str(tmp_path / "out"), "--home", str(store.home), *words]) == 2
        assert said in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_model_that_is_not_converted_for_megatron_is_refused(
    store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    predicting = copied(store.resolve("trained").path, tmp_path / "predicting")
    change_weights(predicting, lambda tensors: tensors.update({"mtp.layers.0.norm.weight": torch.ones(64)}))
    for folder, said in (
        (make(tmp_path / "qwen", "qwen2_tied"), "--for megatron is for NemotronH"),
        (predicting, "the block that predicts further tokens"),
    ):
        words = ["export", str(folder), str(tmp_path / "out"), "--home", str(store.home), "--for", "megatron"]
        assert main(words) == 2
        assert said in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_checkpoint_that_cannot_be_read_back_is_not_passed_over(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = export(store, tmp_path / "out", "--no-verify")
    (folder / "megatron").mkdir()
    monkeypatch.setenv("NEMOTRON_ENGINES", str(tmp_path / "engines"))
    part = verified(store, folder, store.resolve("trained"), run=False).parts[0]
    assert "megatron: Megatron-Bridge is not installed: make its environment" in part.not_run[0] and not part.findings
    for package in ("megatron-core", "megatron-bridge"):
        about = tmp_path / f"engines/megatron/lib/python3.12/site-packages/{package}-1.0.dist-info/METADATA"
        about.parent.mkdir(parents=True)
        about.write_text(f"Name: {package}\nVersion: 1.0\n")
    program = tmp_path / "engines/megatron/bin/python"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\necho no checkpoint here >&2\nexit 1\n")
    program.chmod(0o755)
    assert findings(store, folder) == {"megatron": "Megatron-Bridge failed: no checkpoint here"}


def test_a_dry_run_tells_sizes_and_writes_nothing(
    store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["export", "trained", str(tmp_path / "out"), "--home", str(store.home), "--dry-run", "--json"]
    sizes = []
    for more in ([], ["--dtype", "bfloat16"]):
        assert main([*words, *more]) == 0
        sizes.append(json.loads(capsys.readouterr().out)["files"]["model.safetensors"])
    assert sizes[0] * 0.5 <= sizes[1] < sizes[0] * 0.51  # the router's bias keeps its type
    assert not (tmp_path / "out").exists()
