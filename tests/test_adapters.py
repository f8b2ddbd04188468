"""An adapter on a base model, evaluated beside that base."""

import json
from pathlib import Path

from support import nemotron, short


def test_a_model_with_an_adapter_is_evaluated_beside_its_base(run, tmp_path: Path) -> None:
    run(*nemotron("super3", "pretrain", *short("pretrain")))
    run(*nemotron("super3", "sft", *short("sft"), "engine=transformers_lora"))
    run(*nemotron("super3", "eval", *short("eval"), "run.model=sft", "run.base=pretrain", "run.sft=null"))
    store = tmp_path / "home" / "artifacts"
    results = json.loads((store / "super3-eval-results" / "v1" / "results.json").read_text())
    found = {model["reference"] for model in results["models"].values() if model.get("reference")}
    assert found == {"super3-pretrain-model:v1", "super3-sft-model:v1"}
    assert (store / "super3-sft-model" / "v1" / "adapter" / "adapter_model.safetensors").is_file()
    assert results["comparisons"], "the two are compared"
