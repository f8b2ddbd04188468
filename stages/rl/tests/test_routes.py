"""GRPO trains models without experts, and notes the experts of other kinds' routers."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from support import last_values_win, short
from transformers import AutoConfig, AutoModelForCausalLM
from zoo import ZOO, Kind, chatml, write

from nemotron_engines.exact.scoring import code
from stages.rl import train
from stages.rl.engines.trl.routes import noting_routes, unmeasured
from stages.rl.rewards import Judge

main = last_values_win(train.main)


DENSE = ZOO["nemotron_h"].more | {"hybrid_override_pattern": "M*-"}
KINDS = {
    "llama": Kind("llama", chatml), "qwen3_moe": ZOO["qwen3_moe"], "nemotron_h": ZOO["nemotron_h"],
    "nemotron_h_dense": Kind("nemotron_h", chatml, DENSE, ("num_hidden_layers",)),
}  # fmt: skip


def model_of(model_type: str, **more: Any) -> Any:
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2,
             "vocab_size": 64, "num_hidden_layers": 2, "pad_token_id": 0}  # fmt: skip
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(AutoConfig.for_model(model_type, **(sizes | more))).eval()


@pytest.mark.parametrize("model_type", ["qwen3_moe", "mixtral", "olmoe", "gpt_oss", "granitemoe"])
def test_experts_are_those_that_the_routers_scores_are_highest_for(model_type: str) -> None:
    experts = {"num_experts": 4, "num_local_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
    model, ids = model_of(model_type, **experts), torch.randint(1, 64, (2, 7))
    with torch.no_grad(), noting_routes(model) as routes:
        scores = model(ids, output_router_logits=True).router_logits
        model(ids[:, :3])
    whole, begin = routes.passes(rows=2)
    best = [layer.topk(2)[1].sort(-1)[0] for layer in scores]
    assert len(best) == 2 and len(set(whole.flatten().tolist())) > 4
    assert whole.tolist() == code(torch.stack(best, 1)).view(2, 7).tolist()
    assert begin.tolist() == whole[:, :3].tolist()
    assert unmeasured(model) is None


@pytest.mark.parametrize(("model_type", "told"), [("llama", None), ("llama4_text", "Llama4ForCausalLM")])
def test_a_model_without_an_index_of_experts_is_named_if_it_has_routers(model_type: str, told: str | None) -> None:
    model = model_of(model_type, head_dim=8, num_local_experts=4, intermediate_size_mlp=64)
    with torch.no_grad(), noting_routes(model) as routes:
        model(torch.ones(1, 3, dtype=torch.int64))
    assert routes.passes(rows=1) == [] and unmeasured(model) == told


def steps_of(folder: Path, monkeypatch: pytest.MonkeyPatch, name: str, *words: str) -> list[dict[str, Any]]:
    """The steps of a training from a small model of a kind."""
    monkeypatch.setitem(ZOO, name, KINDS[name])
    write(name, folder / "model")
    monkeypatch.setenv("NEMOTRON_HOME", str(folder / "home"))
    assert (
        main([*words, "--rehearsed", "train.train_iters=1", "train.eval_interval=1", f"run.model={folder / 'model'}"])
        == 0
    )
    (file,) = folder.glob("home/artifacts/super3-rl-model/v1/metrics.jsonl")
    return [one for one in map(json.loads, file.read_text().splitlines()) if "loss" in one]


@pytest.mark.parametrize(
    ("name", "exact"),
    [("llama", False), ("qwen3_moe", False), ("nemotron_h_dense", True),
     pytest.param("nemotron_h_dense", False, marks=pytest.mark.slow),
     pytest.param("nemotron_h", False, marks=pytest.mark.slow)],
)  # fmt: skip
def test_other_kinds_of_models_train(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, exact: bool) -> None:
    monkeypatch.setattr(Judge, "score", lambda one, text, answer, asked, row: len(text) % 3)
    (line,) = steps_of(tmp_path, monkeypatch, name, *short("rl"), f"engine.exact_sampling={str(exact).lower()}")
    assert line["grad_norm"] > 0 and line["logprob_difference"] < 1e-4
    assert (line["differing_tokens"] == 0) == exact
    assert ("router_flips" in line) == (name in ("qwen3_moe", "nemotron_h"))


@pytest.mark.parametrize(
    ("words", "loss"),
    [(short("rl"), 0.0),
     pytest.param(("-c", "dpo_tiny", "data_prep.synthetic_problems=60"), math.log(2), marks=pytest.mark.slow)],
    ids=["grpo", "dpo"],
)  # fmt: skip
def test_a_models_config_adds_nothing_to_the_loss(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], loss: float
) -> None:
    monkeypatch.setattr(Judge, "score", lambda one, text, answer, asked, row: 1.0)
    (line,) = steps_of(tmp_path, monkeypatch, "qwen3_moe", *words)
    assert line["loss"] == pytest.approx(loss, abs=1e-6)
