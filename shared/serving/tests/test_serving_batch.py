"""Requests join and leave the batch, and each gets the answer that it would get alone."""

import json
import shutil
import threading
import time
from pathlib import Path

import pytest
import torch
from transformers import GenerationConfig
from transformers.generation.logits_process import (
    LogitsProcessorList,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from nemotron_serving.batch import Batch, End, Full
from nemotron_serving.model import Model, ready
from nemotron_serving.sampling import Chooser, Sampling, Token, choose, exponential
from nemotron_shared.artifacts import Store
from nemotron_shared.models.importing import import_folder
from nemotron_shared.system.errors import UserError

PROMPTS = ["What is 3+4?", "a", "Mira lives in Oster. Where does Mira live, and with whom?", "12+7-3", "Tova", "b c d"]


def ids_of(model: Model, text: str) -> list[int]:
    return model.prompter.text(text).ids


def slowly(model: Model, ids: list[int], most: int) -> list[int]:
    """Token by token, without a cache: beyond doubt."""
    ids = list(ids)
    for _ in range(most):
        with torch.inference_mode():
            ids.append(int(model.batch._model(input_ids=torch.tensor([ids]), use_cache=False).logits[0, -1].argmax()))
    return ids


def test_an_answer_does_not_depend_on_who_else_asks(never_ends: Model) -> None:
    model = never_ends
    prompts = [ids_of(model, text) for text in PROMPTS * 2]
    lengths = [3 + 2 * number for number in range(len(prompts))]
    answers = []
    for ids, most in zip(prompts, lengths, strict=True):  # more than fit at once, of all lengths
        answers.append(model.batch.generate(ids, Sampling(most)))
        time.sleep(0.01)  # some join while others are under way
    for answer, ids, most in zip(answers, prompts, lengths, strict=True):
        assert [token.id for token in answer] == slowly(model, ids, most)[len(ids) :]
        assert answer.reason == "length"
    assert len({tuple(ids[:2]) for ids in prompts}) > 3


def test_the_same_seed_draws_the_same_whoever_else_asks(never_ends: Model) -> None:
    model, drawn = never_ends, Sampling(12, temperature=1.2, top_p=0.9, seed=5)
    ids = ids_of(model, "Mira")
    alone = [token.id for token in model.batch.generate(ids, drawn)]
    others = [model.batch.generate(ids_of(model, text), Sampling(20, 1.0, seed=1)) for text in PROMPTS]
    assert [token.id for token in model.batch.generate(ids, drawn)] == alone
    assert [token.id for token in model.batch.generate(ids, Sampling(12, 1.2, 0.9, seed=6))] != alone
    for other in others:
        other.cancel()


def slowly_drawn(model: Model, ids: list[int], asked: Sampling) -> list[int]:
    """Without a cache, and by `torch.multinomial` over the whole sorted vocabulary: beyond doubt."""
    ids, generator = list(ids), torch.Generator().manual_seed(asked.seed or 0)
    before = len(ids)
    for _ in range(asked.max_tokens):
        with torch.inference_mode():
            logits = model.batch._model(input_ids=torch.tensor([ids]), use_cache=False).logits[0, -1]
        shares = torch.softmax((logits - logits.max()) / asked.temperature, -1)
        kept, order = shares, torch.arange(len(shares))
        if asked.top_k or asked.top_p < 1 or asked.min_p:
            falling, order = shares.sort(descending=True, stable=True)
            kept = falling.clone()
            kept[asked.top_k or len(kept) :] = 0
            kept = kept / kept.sum() if asked.top_k else kept
            kept = kept.where(kept.cumsum(0) - kept < asked.top_p, 0)
            kept[falling < asked.min_p * falling[0]] = 0
        ids.append(int(order[torch.multinomial(kept, 1, generator=generator)]))
    return ids[before:]


def test_a_seed_draws_the_same_answer_in_a_batch_of_any_size(never_ends: Model) -> None:
    kinds = [{}, {"top_p": 0.9}, {"top_k": 7}, {"min_p": 0.1, "temperature": 0.7}, {"top_k": 40, "top_p": 0.8}]
    asked = [Sampling(**{"max_tokens": 5 + 2 * (seed % 3), "temperature": 1.1, "seed": seed, **kinds[seed % 5]})
             for seed in range(10)]  # fmt: skip
    prompts = [ids_of(never_ends, PROMPTS[number % 4]) for number in range(10)]
    expected = [slowly_drawn(never_ends, *both) for both in zip(prompts, asked, strict=True)]
    assert len({tuple(answer) for answer in expected}) == 10
    for size in (1, 4, 10):
        with Batch(never_ends.batch._model, set(), size) as batch:
            answers = [batch.generate(*both) for both in zip(prompts, asked, strict=True)]
            assert [[token.id for token in answer] for answer in answers] == expected


@pytest.mark.parametrize("size", [40, 1500])
def test_the_choice_for_all_requests_at_once_is_that_for_each_alone(size: int) -> None:
    """Among them are rows whose largest shares are equal, and rows whose likeliest tokens do not suffice."""
    kinds = [{"top_p": 0.9}, {"top_k": 3}, {"top_k": 300}, {"min_p": 0.5}, {"top_p": 1e-9}, {"top_k": 5, "top_p": 0.6}]
    asked = [Sampling(1, temperature=0.5 + 0.1 * number, seed=number, **kinds[number % 6]) for number in range(24)]
    logits = torch.randn(24, size, generator=torch.Generator().manual_seed(0)) * torch.linspace(0.1, 6, 24)[:, None]
    logits[::2] = logits[::2].round()
    logits[1] = logits[3] = logits[5] = 0
    together = choose([Chooser(one) for one in asked], logits)
    for one, row, found in zip(asked, logits, together, strict=True):
        shares = torch.softmax((row - row.max()) / one.temperature, -1)
        falling, order = shares.sort(descending=True, stable=True)
        kept = falling.clone()
        if one.top_k:
            kept[one.top_k :] = 0
            kept /= kept.sum()
        kept = torch.cat([kept[:1], kept.where(kept.cumsum(0) - kept < one.top_p, 0)[1:]])
        kept[falling < one.min_p * falling[0]] = 0
        drawn = torch.multinomial(kept, 1, generator=torch.Generator().manual_seed(one.seed or 0))
        assert found == Token(int(order[drawn]))


@pytest.mark.parametrize("size", [7, 8192])
def test_random_numbers_are_those_of_torch(size: int) -> None:
    choosers = [Chooser(Sampling(1, 1.0, seed=seed)) for seed in range(3)]
    found = torch.cat([exponential(choosers, size) for _ in range(2)], 1)
    for seed, row in enumerate(found):
        generator = torch.Generator().manual_seed(seed)
        expected = [torch.empty(size).exponential_(generator=generator) for _ in range(2)]
        assert torch.equal(row, torch.cat(expected))


def test_a_cancelled_request_leaves_and_the_others_go_on(never_ends: Model) -> None:
    model = never_ends
    stays, leaves = (model.batch.generate(ids_of(model, text), Sampling(30)) for text in ("Tova", "Mira"))
    next(iter(leaves))
    leaves.cancel()
    assert len([*leaves]) < 29
    assert leaves.reason == "cancelled"
    assert [token.id for token in stays] == slowly(model, ids_of(model, "Tova"), 30)[len(ids_of(model, "Tova")) :]
    assert model.batch.load == (0, 0)


def test_too_many_are_refused_and_nobody_is_lost(never_ends: Model) -> None:
    model = never_ends
    answers = [model.batch.generate(ids_of(model, "Tova"), Sampling(200)) for _ in range(8)]
    while model.batch.load[0] < 8:
        time.sleep(0.005)
    answers += [model.batch.generate([5], Sampling(1)) for _ in range(20)]
    with pytest.raises(Full, match="20 requests are already waiting"):
        model.batch.generate([5], Sampling(1))
    for answer in answers:
        answer.cancel()
    for answer in answers:
        assert all(isinstance(token, Token) for token in answer)


def test_what_one_request_breaks_the_others_do_not_feel(never_ends: Model) -> None:
    model = never_ends
    good = model.batch.generate(ids_of(model, "Tova"), Sampling(8))
    bad = model.batch.generate([10**6], Sampling(8))
    with pytest.raises(UserError, match="small:v1: cannot answer: IndexError: "):
        list(bad)
    assert len(list(good)) == 8


def test_logits_that_are_no_numbers_name_the_model(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = ids_of(model, "Tova")
    monkeypatch.setattr(model.batch._model.lm_head, "forward", lambda states: states * float("nan"))
    for ask in (lambda: list(model.batch.generate(ids, Sampling(8))), lambda: model.batch.score(ids).result()):
        with pytest.raises(
            UserError, match=r"small:v1: cannot answer: .*not finite: its weights are damaged"
        ) as caught:
            ask()
        assert caught.value.remedy


def test_requests_without_memory_in_the_batch_are_told(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise RuntimeError("not enough memory")

    ids = ids_of(model, "Tova")
    with monkeypatch.context() as patched:
        patched.setattr(model.batch._sequences, "add", full)
        answers = [model.batch.generate(ids, Sampling(3)) for _ in range(3)]
        for answer in answers:
            with pytest.raises(UserError, match="not enough memory"):
                list(answer)
    assert len(list(model.batch.generate(ids, Sampling(3, ignore_eos=True)))) == 3, "the next ones succeed"


def test_a_batch_that_ends_leaves_nobody_waiting(model: Model) -> None:
    heard: list[Token | End] = []
    with Batch(model.batch._model, set(), 1) as batch:
        batch.generate([5, 6], Sampling(10**6), heard.append)
        batch.generate([5, 6], Sampling(10**6), heard.append)
        while not heard:
            time.sleep(0.005)
    assert [what.reason for what in heard if isinstance(what, End)] == ["cancelled", "cancelled"]
    with pytest.raises(RuntimeError, match="the model was unloaded"):
        batch.generate([5], Sampling(1))
    assert "model" not in {thread.name for thread in threading.enumerate() if thread is batch._thread}


def test_scores_are_those_of_the_model_and_long_rows_do_not_disturb_short_ones(model: Model) -> None:
    prompts = [ids_of(model, text) for text in PROMPTS]
    together = [model.batch.score(ids) for ids in prompts]
    for ids, future in zip(prompts, together, strict=True):
        with torch.inference_mode():
            logits = model.batch._model(input_ids=torch.tensor([ids]), use_cache=False).logits[0]
        known = torch.log_softmax(logits.float(), -1)
        expected = [float(known[place, number]) for place, number in enumerate(ids[1:])]
        assert [score.logprob for score in future.result()][:-1] == pytest.approx(expected, abs=1e-4)
        assert future.result()[-1].best_id == int(known[-1].argmax())


def chosen(chooser: Chooser, logits: torch.Tensor) -> Token:
    (token,) = choose([chooser], logits[None])
    assert isinstance(token, Token)
    return token


def test_choosing() -> None:
    logits = torch.tensor([1.0, 3.0, 2.0, -1e4])
    assert chosen(Chooser(Sampling(1)), logits).id == 1
    few = {chosen(Chooser(Sampling(1, 1.0, top_p=0.5, seed=seed)), logits).id for seed in range(30)}
    assert few == {1}
    assert {chosen(Chooser(Sampling(1, 1.0, seed=seed)), logits).id for seed in range(60)} == {0, 1, 2}
    assert chosen(Chooser(Sampling(1, 1e-30, seed=1)), logits).id == 1
    assert chosen(Chooser(Sampling(1, 1.0, top_p=1e-320, seed=1)), logits).id == 1
    told = chosen(Chooser(Sampling(1, logprobs=2)), logits)
    assert [number for number, _ in told.top] == [1, 2]
    assert told.logprob == pytest.approx(float(torch.log_softmax(logits, -1)[1]))
    bad, good = choose([Chooser(Sampling(1))] * 2, torch.tensor([[1.0, float("nan")], [1.0, 2.0]]))
    assert isinstance(bad, ValueError) and "not finite" in str(bad)
    assert good == Token(1)


def test_a_models_own_file_decides_how_it_answers(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "own"
    shutil.copytree(Store(home).resolve("small").path, folder, ignore=shutil.ignore_patterns("manifest.json"))
    file = folder / "generation_config.json"
    asks = {"do_sample": True, "temperature": 3.0, "top_k": 1, "no_repeat_ngram_size": 3, "num_beams": 1}
    file.write_text(json.dumps(asks | {"eos_token_id": [5, 400]}))
    import_folder(Store(tmp_path / "home"), folder, name="own", trusted=False)
    with ready(Store(tmp_path / "home").resolve("own"), device="cpu", size=2, slow_kernels=False) as model:
        assert {5, 400} <= model.batch._eos
        sampling = model.sampling(8, None, None, 1)
        assert (sampling.temperature, sampling.top_k, sampling.top_p) == (3.0, 1, 1.0)
        assert model.sampling(8, 0.5, 0.9, 1).temperature == 0.5
        ids = ids_of(model, "What is 3+4?")
        drawn = [[token.id for token in model.batch.generate(ids, model.sampling(8, None, None, s))] for s in (1, 2)]
        assert drawn[0] == drawn[1] == [token.id for token in model.batch.generate(ids, Sampling(8))]
    assert "asks for no_repeat_ngram_size: not done here" in capsys.readouterr().err


def shares(sampling: Sampling, prompt: list[int], logits: torch.Tensor, draws: int = 400) -> set[int]:
    """The tokens that are drawn at all."""
    chooser = Chooser(sampling, prompt)
    chooser.generator.manual_seed(0)
    found = set()
    for _ in range(draws):
        chooser._there = set(prompt)
        found.add(chosen(chooser, logits).id)
    return found


@pytest.mark.parametrize(
    ("asked", "prompt"),
    [
        ({"top_k": 3}, []),
        ({"min_p": 0.3}, []),
        ({"top_k": 4, "top_p": 0.8}, []),
        ({"top_p": 0.9, "min_p": 0.25}, []),
        ({"top_k": 2, "repetition_penalty": 3.0}, [0, 5]),
        ({"repetition_penalty": 1.5, "temperature": 0.7, "top_k": 3}, [0, 1, 5]),
    ],
)
def test_tokens_are_drawn_from_those_that_transformers_leaves(asked: dict[str, float], prompt: list[int]) -> None:
    logits = torch.tensor([2.0, 1.6, 1.4, 1.0, 0.7, -0.5, -3.0, -9.0])
    settings = GenerationConfig(do_sample=True, **{"top_k": 0, **asked})
    processors = LogitsProcessorList()
    if settings.repetition_penalty:
        processors.append(RepetitionPenaltyLogitsProcessor(settings.repetition_penalty))
    processors.append(TemperatureLogitsWarper(float(asked.get("temperature", 1.0))))
    for made, name in ((TopKLogitsWarper, "top_k"), (TopPLogitsWarper, "top_p"), (MinPLogitsWarper, "min_p")):
        if name in asked:
            processors.append(made(asked[name]))
    left = processors(torch.tensor([prompt or [7]]), logits[None].clone())[0]
    expected = {token for token in range(len(logits)) if float(torch.softmax(left, -1)[token]) > 0.01}
    assert shares(Sampling(1, **({"temperature": 1.0} | asked)), prompt, logits) == expected
