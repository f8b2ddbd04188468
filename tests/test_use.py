"""A model that was made is used by programs of others: lm-eval asks our server, transformers loads our export."""

from pathlib import Path

import pytest
import torch
from evaluator_support import tiny_model
from transformers import AutoModelForCausalLM, AutoTokenizer

from nemotron_app.main import main
from nemotron_serving.api import Api
from nemotron_serving.model import ready
from nemotron_serving.server import serving
from nemotron_shared.artifacts import Artifact

CONTEXTS = [("Mira lives in", " Oster."), ("Tova keeps", " a goat."), ("7+5", "=12")]


@pytest.mark.slow
def test_lm_eval_scores_over_http_as_it_does_in_the_process(tmp_path: Path) -> None:
    from lm_eval.api.instance import Instance
    from lm_eval.models.huggingface import HFLM
    from lm_eval.models.openai_completions import LocalCompletionsAPI

    model, tokenizer = tiny_model(tmp_path / "tiny")
    requests = [Instance("loglikelihood", {}, pair, number) for number, pair in enumerate(CONTEXTS)]
    rolling = [Instance("loglikelihood_rolling", {}, ("Mira lives in Oster.",), 0)]
    stops = [Instance("generate_until", {}, ("Mira", {"until": ["\n"], "max_gen_toks": 6, "do_sample": False}), 0)]
    here = HFLM(pretrained=model, tokenizer=tokenizer, batch_size=2, device="cpu")
    artifact = Artifact.external(tmp_path / "tiny")
    with (
        ready(artifact, device="cpu", size=4, slow_kernels=False) as loaded,
        serving(Api(loaded, ("tiny",), 16).app(None)) as url,
    ):
        address, folder = f"{url}/v1/completions", str(tmp_path / "tiny")
        there = LocalCompletionsAPI(base_url=address, model="tiny", tokenizer=folder, batch_size=2)
        asked = there.loglikelihood(requests, disable_tqdm=True)
        whole = there.loglikelihood_rolling(rolling, disable_tqdm=True)
        said = there.generate_until(stops, disable_tqdm=True)
    expected = here.loglikelihood(requests, disable_tqdm=True)
    assert [greedy for _, greedy in asked] == [greedy for _, greedy in expected]
    assert [found for found, _ in asked] == pytest.approx([found for found, _ in expected], abs=1e-3)
    assert whole == pytest.approx(here.loglikelihood_rolling(rolling, disable_tqdm=True), abs=1e-2)
    assert said == here.generate_until(stops, disable_tqdm=True)


@pytest.mark.slow
def test_transformers_loads_an_export(tmp_path: Path) -> None:
    model, tokenizer = tiny_model(tmp_path / "tiny")
    assert main(["export", str(tmp_path / "tiny"), str(tmp_path / "out"), "--home", str(tmp_path / "home")]) == 0
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    ids = torch.tensor([AutoTokenizer.from_pretrained(tmp_path / "out")("Mira lives in Oster.").input_ids])
    assert ids.tolist() == [tokenizer("Mira lives in Oster.").input_ids]
    with torch.inference_mode():
        assert torch.equal(loaded(input_ids=ids).logits.argmax(-1), model(input_ids=ids).logits.argmax(-1))
    assert loaded.generation_config.eos_token_id == tokenizer.eos_token_id
