"""Requests join and leave the batch, and each gets the answer that it would get alone."""

import threading
import time

import pytest
import torch

from nemotron_serving.batch import Batch, End, Full
from nemotron_serving.model import Model
from nemotron_serving.sampling import Chooser, Sampling, Token
from nemotron_shared.errors import UserError

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
    with pytest.raises(Full, match="20 requests wait"):
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


def test_a_batch_that_ends_leaves_nobody_waiting(model: Model) -> None:
    heard: list[Token | End] = []
    with Batch(model.batch._model, set(), 1) as batch:
        batch.generate([5, 6], Sampling(10**6), heard.append)
        batch.generate([5, 6], Sampling(10**6), heard.append)
        while not heard:
            time.sleep(0.005)
    assert [what.reason for what in heard if isinstance(what, End)] == ["cancelled", "cancelled"]
    with pytest.raises(RuntimeError, match="no longer there"):
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


def test_choosing() -> None:
    logits = torch.tensor([1.0, 3.0, 2.0, -1e4])
    assert Chooser(Sampling(1)).choose(logits).id == 1
    few = {Chooser(Sampling(1, 1.0, top_p=0.5, seed=seed)).choose(logits).id for seed in range(30)}
    assert few == {1}
    assert {Chooser(Sampling(1, 1.0, seed=seed)).choose(logits).id for seed in range(60)} == {0, 1, 2}
    assert Chooser(Sampling(1, 1e-30, seed=1)).choose(logits).id == 1
    assert Chooser(Sampling(1, 1.0, top_p=1e-320, seed=1)).choose(logits).id == 1
    told = Chooser(Sampling(1, logprobs=2)).choose(logits)
    assert [number for number, _ in told.top] == [1, 2]
    assert told.logprob == pytest.approx(float(torch.log_softmax(logits, -1)[1]))
    with pytest.raises(ValueError, match="not finite"):
        Chooser(Sampling(1)).choose(torch.tensor([1.0, float("nan")]))
