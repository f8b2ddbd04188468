"""A model that was made is used by programs of others: lm-eval asks our server, transformers loads our export."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from evaluator_support import tiny_model
from transformers import AutoModelForCausalLM, AutoTokenizer
from twins import TWINS, logits_of, tokens, twin_folder, twin_model

from nemotron_app.main import main
from nemotron_engines.modeling.build import ONLY_MADE, load_model
from nemotron_serving.api import Api
from nemotron_serving.batch import Batch
from nemotron_serving.model import ready
from nemotron_serving.server import serving
from nemotron_shared.artifacts import Artifact, Store

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


@pytest.mark.parametrize("twin", TWINS)
def test_an_imported_model_is_exported_as_it_came(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], twin: str, measure: Callable[[str, float, float], None]
) -> None:
    model, source, home = twin_folder(twin, tmp_path / "source"), tmp_path / "source", str(tmp_path / "home")
    assert main(["model", "import", str(source), "--as", "mine", "--home", home]) == 0
    assert main(["export", "mine", str(tmp_path / "out"), "--home", home]) == 0
    stored = Store(tmp_path / "home").resolve("mine").path
    weights = sorted(path.name for path in source.glob("*.safetensors"))
    assert weights and all((source / name).read_bytes() == (stored / name).read_bytes() for name in weights)
    loaded = load_model(tmp_path / "out", ONLY_MADE).eval()
    furthest = float((logits_of(loaded, tokens()) - logits_of(model, tokens())).abs().max())
    measure("logits: an exported model against the one that was imported", furthest, 0)


@pytest.mark.parametrize("twin", TWINS)
def test_the_evaluation_of_a_batch_scores_each_row_as_if_alone(
    tmp_path: Path, twin: str, measure: Callable[[str, float, float], None]
) -> None:
    model, furthest = twin_model(twin, tmp_path), 0.0
    rows = [tokens(1, length, seed=length)[0].tolist() for length in (20, 9, 3)]
    batch = Batch(model, eos=set(), size=len(rows))
    asked = [batch.score(row) for row in rows]  # before its thread begins, and so all at once
    with batch:
        together = [one.result() for one in asked]
    for row, scores in zip(rows, together, strict=True):
        alone = logits_of(model, torch.tensor([row]))[0].double().log_softmax(-1)
        found = [(score.logprob, float(alone[place, row[place + 1]])) for place, score in enumerate(scores[:-1])]
        assert len(found) == len(row) - 1
        furthest = max(furthest, *(abs(one - other) for one, other in found))
    measure("log-probabilities: rows evaluated in a batch against alone", furthest, 1e-4)


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
