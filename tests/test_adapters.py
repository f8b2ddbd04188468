"""An adapter on a base model, evaluated beside that base, and one that could not be merged."""

import json
import re
from pathlib import Path

import pytest
import yaml
from support import nemotron, short
from transformers import AutoModelForCausalLM
from zoo import write

from nemotron_engines.lora.adapt import lora_config
from nemotron_shared.config.schema import LoraSection
from nemotron_shared.system.errors import UserError
from stages.sft.train import main


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


@pytest.mark.parametrize(
    ("kind", "chosen", "named"),
    [
        ("llama_tied", "target_modules=[lm_head]", "adapts lm_head, but"),
        ("llama_tied", "target_modules=['*']", "adapts lm_head and model.embed_tokens, but"),
        ("llama_tied", "target_modules=[embed_tokens]", "adapts model.embed_tokens, but"),
        ("gemma2", "target_modules=[q_proj, lm_head]", "adapts lm_head, but"),  # tied by its architecture's default
    ],
)
def test_an_adapter_of_a_head_that_is_the_embeddings_is_refused_before_the_first_step(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    kind: str,
    chosen: str,
    named: str,
) -> None:
    """And in a dry run; its remedy works."""
    write(kind, tmp_path / "model")
    if kind == "gemma2":
        config = json.loads((tmp_path / "model" / "config.json").read_text())
        del config["tie_word_embeddings"]
        (tmp_path / "model" / "config.json").write_text(json.dumps(config))
    monkeypatch.setenv("NEMOTRON_HOME", str(tmp_path / "home"))
    rows = [{"messages": [{"role": "user", "content": "2+2?"}, {"role": "assistant", "content": "4"}]}] * 4
    (tmp_path / "chats.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    words = [*short("sft"), f"run.model={tmp_path / 'model'}", f"data_prep.source={tmp_path / 'chats.jsonl'}"]
    words += ["engine=transformers_lora", f"engine.peft.{chosen}", "--dry-run"]
    assert main(words) == 1
    said = capsys.readouterr().out
    assert named in said and said.count("head and embeddings are one tensor") == 1
    with pytest.raises(UserError, match="one tensor") as caught:
        lora_config(AutoModelForCausalLM.from_pretrained(tmp_path / "model"), section_of(chosen))
    remedy = re.findall(r"engine\.peft\.(\w+=\[[^]]*\])", str(caught.value.remedy))
    assert len(remedy) == 1
    lora_config(AutoModelForCausalLM.from_pretrained(tmp_path / "model"), section_of(chosen, *remedy))


def section_of(*words: str) -> LoraSection:
    changed = {name: yaml.safe_load(value) for name, _, value in (word.partition("=") for word in words)}
    plain = {"dim": 2, "alpha": 2, "dropout": 0.0, "layers": None, "target_modules": [], "exclude_modules": []}
    return LoraSection(**(plain | changed))
