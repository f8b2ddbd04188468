"""Load balancing of experts, judged against sums written out one expert at a time."""

from typing import Any, cast

import pytest
import torch
from moe_support import EXPERTS, ROWS, TOKENS, TOP_K, engine, gradients, some_ids, tiny_model
from pydantic import ValidationError
from torch import Tensor, nn

from nemotron_engines.transformers.balance import LoadBalancing, sequence_loss
from nemotron_shared.system.errors import UserError

COEFFICIENT = 0.5  # much more than a recipe's, so that its gradient counts
REAL = torch.arange(TOKENS) < torch.tensor([[TOKENS], [7]])


def reference(logits: Tensor, top_k: int, real: Tensor) -> Tensor:
    """E * sum over experts of (share of choices * mean normalised score), averaged over rows, in float64."""
    losses = []
    for row, kept in zip(logits.double(), real, strict=True):
        scores = 1 / (1 + torch.exp(-row[kept]))
        scores = scores / scores.sum(1, keepdim=True)
        experts = scores.shape[1]
        choices = [expert for one in scores for expert in sorted(range(experts), key=lambda e: -one[e])[:top_k]]
        shares = [choices.count(expert) / len(choices) for expert in range(experts)]
        losses.append(experts * sum(share * scores[:, e].mean() for e, share in enumerate(shares)))
    return torch.stack(losses).mean()


def balanced(model: nn.Module, **settings: float) -> LoadBalancing:
    return LoadBalancing(model, engine(**settings))


def step(balancing: LoadBalancing) -> None:
    nothing = cast(Any, None)
    balancing.on_pre_optimizer_step(nothing, nothing, nothing)


@pytest.mark.parametrize("real", [torch.ones(3, 9).bool(), torch.arange(9) < torch.tensor([[9], [4], [1]])])
def test_the_loss_of_a_row_and_its_gradient(real: Tensor) -> None:
    logits = torch.randn(3, 9, 6, generator=torch.Generator().manual_seed(1)).requires_grad_()
    loss, wanted = sequence_loss(logits, 2, real), reference(logits, 2, real)
    assert loss.item() == pytest.approx(wanted.item(), rel=1e-6)
    ours, theirs = (torch.autograd.grad(one, logits)[0] for one in (loss, wanted))
    assert (ours - theirs).norm() <= 1e-6 * theirs.norm()


def test_an_even_load_costs_one_and_a_single_favourite_more() -> None:
    even = 9 * torch.eye(4).repeat(1, 2, 1)
    assert sequence_loss(even, 1, None).item() == pytest.approx(1)
    assert sequence_loss(9 * torch.eye(4)[:1].repeat(1, 8, 1), 1, None).item() > 1.5


def test_a_model_gets_the_gradient_of_both_losses() -> None:
    model, ids, logits = tiny_model(), some_ids(), []
    hooks = [
        layer.mixer.gate.register_forward_hook(lambda _gate, _given, made: logits.append(made[0]))
        for layer in cast(Any, model).model.layers
        if layer.block_type == "moe"
    ]
    plain = model(input_ids=ids, labels=ids, use_cache=False).loss
    losses = [reference(one.view(ROWS, TOKENS, EXPERTS), TOP_K, REAL) for one in logits]
    (plain + COEFFICIENT * torch.stack(losses).sum()).backward()
    wanted = gradients(model)
    for hook in hooks:
        hook.remove()
    balancing = balanced(model, moe_aux_loss_coeff=COEFFICIENT)
    with balancing.passing(1.0, REAL):
        loss = model(input_ids=ids, labels=ids, use_cache=False).loss
    assert loss.item() == plain.item()
    loss.backward()
    assert balancing.take()["load_balancing_loss"] == pytest.approx(float(torch.stack(losses).mean()), rel=1e-5)
    ours = gradients(model)
    assert ours.keys() == wanted.keys()
    worst = max(float((ours[name] - value).norm() / value.norm()) for name, value in wanted.items())
    assert worst <= 1e-4


@pytest.mark.parametrize("again", [False, True])
def test_micro_batches_and_activations_computed_again_change_nothing(again: bool) -> None:
    ids, (model, other) = some_ids(), (tiny_model(), tiny_model())
    whole = balanced(model, moe_aux_loss_coeff=COEFFICIENT, moe_router_bias_update_rate=0.1)
    with whole.passing(1.0, None):
        loss = model(input_ids=ids, labels=ids, use_cache=False).loss
    loss.backward()
    parts = balanced(other, moe_aux_loss_coeff=COEFFICIENT, moe_router_bias_update_rate=0.1)
    if again:
        other.gradient_checkpointing_enable()
    for row in ids:
        with parts.passing(0.5, None):
            loss = other(input_ids=row[None], labels=row[None], use_cache=False).loss / 2
        loss.backward()
    assert [one.tokens.tolist() for one in parts.routers] == [one.tokens.tolist() for one in whole.routers]
    assert [int(one.tokens.sum()) for one in whole.routers] == [ROWS * TOKENS * TOP_K] * 2
    assert parts.take() == pytest.approx(whole.take())
    ours, wanted = gradients(other), gradients(model)
    assert max(float((ours[name] - value).norm() / value.norm()) for name, value in wanted.items()) <= 1e-4


def test_corrections_move_against_the_violation_of_the_load() -> None:
    model, ids = tiny_model(), some_ids()
    balancing = balanced(model, moe_router_bias_update_rate=0.25)
    before = [router.correction.clone() for router in balancing.routers]
    seen: list[Tensor] = []
    experts = model.get_submodule("model.layers.1.mixer.experts")
    experts.register_forward_pre_hook(lambda _experts, given: seen.append(given[1]))
    with balancing.passing(1.0, REAL):
        model(input_ids=ids, use_cache=False)
    model.eval()(input_ids=ids, use_cache=False)  # validation does not count
    counts = [seen[0][REAL.flatten()].flatten().tolist().count(expert) for expert in range(EXPERTS)]
    moved = [0.25 if count < REAL.sum() * TOP_K / EXPERTS else -0.25 for count in counts]
    step(balancing)
    assert (balancing.routers[0].correction - before[0]).tolist() == pytest.approx(moved)
    assert (balancing.routers[1].correction - before[1]).abs().max() == pytest.approx(0.25)
    assert [int(router.tokens.sum()) for router in balancing.routers] == [0, 0]


def test_what_has_no_such_router_is_refused() -> None:
    with pytest.raises(UserError, match="the model has no router with a correction"):
        balanced(nn.Linear(2, 2), moe_aux_loss_coeff=1e-4)
    peft = {"dim": 8, "alpha": 16, "dropout": 0.0, "layers": None, "target_modules": [], "exclude_modules": []}
    with pytest.raises(ValidationError, match=r"set engine\.moe_aux_loss_coeff=0, or engine\.peft=null"):
        engine(peft=peft, moe_aux_loss_coeff=1e-4)
