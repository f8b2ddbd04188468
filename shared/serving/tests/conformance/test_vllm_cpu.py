"""vLLM on a CPU computes what the model does, and serves it; what it cannot run, it refuses in a sentence.

Run with `ci/engine.sh vllm_cpu`, which makes its environment.
"""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from conformance_support import answers_as_the_model_does, through
from passport_support import DENSE, HEADS, change_json, copied, in_8_bits, make, with_adapters

from nemotron_app.main import main
from nemotron_engines.modeling.stored import stored_in
from nemotron_serving.passport.numbers import GREEDY

pytestmark = pytest.mark.vllm_cpu

OURS = "vLLM with our patch for experts without a gate"
SAME = 1e-8
"""Measured: 3e-14."""


@pytest.mark.parametrize(
    ("kind", "overrides", "runtime"),
    [("llama64", {}, "vLLM"), ("qwen64", {}, "vLLM"), ("nano3_tiny", DENSE, "vLLM"), ("nano3_tiny", HEADS, OURS),
     ("super3_tiny", HEADS, OURS)],
)  # fmt: skip
def test_vllm_computes_what_the_model_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, overrides: dict[str, Any], runtime: str
) -> None:
    monkeypatch.chdir(tmp_path)
    make(tmp_path / "model", kind, overrides)
    assert main(["export", "./model", "out", "--home", "home", "--for", "vllm"]) == 0
    kl, greedy = through(json.loads((tmp_path / "out" / "passport.json").read_text()), runtime)
    assert kl < SAME and greedy == GREEDY
    assert (OURS in (tmp_path / "out" / "passport.html").read_text()) == (runtime == OURS)


@pytest.mark.parametrize(("kind", "overrides"), [("nano3_tiny", DENSE), ("qwen64", {})])
def test_vllm_computes_a_merged_adapter_and_one_beside_its_base(
    tmp_path: Path, kind: str, overrides: dict[str, Any]
) -> None:
    store = with_adapters(tmp_path, kind, overrides)
    for words in ([], ["--adapter"]):
        out = tmp_path / f"out{len(words)}"
        assert main(["export", "trained", str(out), "--home", str(store.home), "--for", "vllm", *words]) == 0
        kl, greedy = through(json.loads((out / "passport.json").read_text()), "vLLM")
        assert kl < SAME and greedy == GREEDY


def test_vllm_computes_a_dense_model_in_fp8(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    out = copied(make(tmp_path / "model", "nano3_tiny", DENSE), tmp_path / "out")
    in_8_bits(out, "modelopt", only="up_proj")
    kept = [name for name, one in stored_in(out).items() if len(one.shape) > 1 and one.dtype == "F32"]
    listed = [name.removesuffix(".weight") for name in kept]
    change_json(out, "config.json", lambda config: config["quantization_config"].update(ignore=listed))
    change_json(out, "hf_quant_config.json", lambda told: told["quantization"].update(exclude_modules=listed))
    assert main(["verify", "out", "--against", "./model", "--home", "home"]) == 0
    told = json.loads((out / "passport.json").read_text())
    assert 0 < through(told, "transformers, weights alone")[0] < 1e-3 and through(told, "vLLM")[0] < 1e-3


def test_vllm_serves_experts_says_whose_they_are_and_keeps_to_a_schema(tmp_path: Path) -> None:
    model = make(tmp_path / "model", "nano3_tiny", HEADS)
    answers_as_the_model_does(model, ["--engine", "vllm"], OURS, fills_forms=True)


def test_what_it_cannot_run_is_refused_in_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    make(tmp_path / "heads", "llama")
    store = with_adapters(tmp_path, overrides=HEADS)
    home = ["--home", str(store.home), "--for", "vllm"]
    for number, (words, sentence) in enumerate((
        (["./heads"], "on a CPU, vLLM takes attention heads of 32, 64, .*, and this model's are of 16"),
        (["trained", "--adapter"], "NotImplementedError: on a CPU, vLLM adds no adapters to a model with experts"),
    )):  # fmt: skip
        assert main(["export", *words[:1], f"out{number}", *home, *words[1:]]) == 0
        told = json.loads((tmp_path / f"out{number}" / "passport.json").read_text())
        assert any(re.fullmatch(f"vLLM cannot run it: {sentence}", one) for one in told["parts"][2]["not_run"])
