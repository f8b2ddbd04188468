"""A model's generation_config.json changes nothing of what evaluation measures but where answers end."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from lm_eval.api.instance import Instance
from zoo import write

from nemotron_engines.modeling.build import ONLY_MADE
from nemotron_engines.modeling.generation import ends_of
from nemotron_shared.artifacts import Artifact
from stages.eval.engines.lm_eval.ask import QuietLM
from stages.eval.episodes import answers
from stages.eval.harness_tasks import generation
from stages.eval.models import model_to_ask

PLANTED: dict[str, Any] = {
    "repetition_penalty": 50.0, "no_repeat_ngram_size": 1, "max_new_tokens": 2, "suppress_tokens": [*range(200)],
    "num_beams": 3, "temperature": 9.0, "top_k": 1,
}  # fmt: skip


def asked(folder: Path, temperature: float, settings: dict[str, Any]) -> tuple[list[list[int]], list[str]]:
    """Turns of an episode and lm-eval's answers, from a model whose file has these settings."""
    ends = {"eos_token_id": 3, "do_sample": True}
    (folder / "generation_config.json").write_text(json.dumps(ends | settings))
    evaluation = SimpleNamespace(temperature=temperature, max_new_tokens=6)
    config: Any = SimpleNamespace(engine=ONLY_MADE, evaluation=evaluation)
    task: Any = SimpleNamespace(config=config, inputs={"model": None})
    model, tokenizer, device = model_to_ask(task, Artifact.external(folder))
    assert 3 in ends_of(model, tokenizer)
    torch.manual_seed(0)
    turns = answers(model, tokenizer, [[5, 6, 7]], {3}, config, device)
    lm = QuietLM(pretrained=model, tokenizer=tokenizer, batch_size=1, device=device)
    lm.run, lm.about = SimpleNamespace(stop_if_requested=lambda: None, say=print), "test"  # ty: ignore[invalid-assignment]
    manner = generation(evaluation, ["<|im_end|>"])  # ty: ignore[invalid-argument-type]
    return turns, lm.generate_until([Instance("generate_until", {}, ("Where is", manner), 0)])


@pytest.mark.parametrize("temperature", [0, 0.7])
def test_no_setting_of_the_file_changes_answers(tmp_path: Path, temperature: float) -> None:
    folder = write("qwen3", tmp_path / "model")
    plain = asked(folder, temperature, {})
    assert len(plain[0][0]) == 6 and plain[1][0]
    for key, value in PLANTED.items():
        assert asked(folder, temperature, {key: value}) == plain, key


def test_a_text_is_measured_behind_one_bos(tmp_path: Path) -> None:
    """With a tokenizer that puts BOS before each text, as those of Llama 2 and Mistral."""
    folder = write("mistral", tmp_path / "model")
    task: Any = SimpleNamespace(config=SimpleNamespace(engine=ONLY_MADE), inputs={"model": None})
    model, tokenizer, device = model_to_ask(task, Artifact.external(folder))
    lm = QuietLM(pretrained=model, tokenizer=tokenizer, batch_size=1, device=device)
    lm.run = SimpleNamespace(stop_if_requested=lambda: None)  # ty: ignore[invalid-assignment]
    ids = torch.tensor([tokenizer("Ada keeps the boat.")["input_ids"]])
    assert ids[0, 0] == tokenizer.bos_token_id
    with torch.no_grad():
        logps = model(ids).logits[0, :-1].log_softmax(-1).gather(1, ids[0, 1:, None])
    found = lm.loglikelihood_rolling([Instance("loglikelihood_rolling", {}, ("Ada keeps the boat.",), 0)])
    assert found == [pytest.approx(float(logps.sum()), rel=1e-4)]
    assert lm.tok_encode("Ada") == tokenizer("Ada")["input_ids"], "other requests are as they were"


@pytest.mark.parametrize("name", ["llama", "nemotron_h"])
def test_answers_of_the_direct_step_are_those_of_transformers(tmp_path: Path, name: str) -> None:
    """Of several lengths, ended by the model's own token, by other words and by the limit."""
    folder = write(name, tmp_path / "model")
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [3, 40, 90, 120, 200]}))
    task: Any = SimpleNamespace(config=SimpleNamespace(engine=ONLY_MADE), inputs={"model": None})
    model, tokenizer, device = model_to_ask(task, Artifact.external(folder))
    lm = QuietLM(pretrained=model, tokenizer=tokenizer, batch_size=5, device=device)
    lm.run, lm.about = SimpleNamespace(stop_if_requested=lambda: None), "test"  # ty: ignore[invalid-assignment]
    texts = ("Where", "Where is the boat of Ada?", "Why?", "In Oslo.", "Where does Jo keep the map?", "Bo", "Ida is")

    def answered(until: list[str]) -> list[tuple[str, bool]]:
        manner = {"until": until, "max_gen_toks": 12, "do_sample": False}
        found: Any = lm.generate_until([Instance("generate_until", {}, (text, manner), 0) for text in texts])
        return [(answer, answer.cut) for answer in found]

    assert lm._directly is not None
    expected: list[tuple[str, bool]] = []
    for until in (["e"], ["a", "\n"], [*lm.ends], ["not there"]):
        direct = answered(until)
        lm.__dict__["_directly"] = None
        by_transformers = answered(until)
        del lm.__dict__["_directly"]
        assert direct == by_transformers
        expected += direct
    assert len(expected) == 28 and len({text for text, _ in expected}) > 10
    assert {cut for _, cut in expected} == {True, False}
