"""The same bits however a NemotronH is computed; and the numbers of transformers' own code, up to rounding."""

import random
from collections.abc import Sequence

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch import Tensor
from transformers import NemotronHConfig, NemotronHForCausalLM, PreTrainedModel

from nemotron_engines.exact.decode import Answer, drawn, follow, sample
from nemotron_engines.exact.scoring import Scores, places_of_mask, places_of_starts, score, score_exactly, why_not
from nemotron_engines.kernels.mamba_install import install_cpu_ops, lift_time_step_limit
from nemotron_engines.transformers.balance import ExpertLoad

torch.set_num_threads(1)
WORDS, MOST = 96, 40
SHAPES = {
    "super": {"hybrid_override_pattern": "MEM*EME", "moe_latent_size": 16},
    "nano": {"hybrid_override_pattern": "M*ME", "moe_latent_size": None},
    "groups of experts": {"hybrid_override_pattern": "EM*", "moe_latent_size": None, "n_group": 2, "topk_group": 1},
    "dense": {"hybrid_override_pattern": "M-*-M", "moe_latent_size": None},
}


def model_of(shape: str) -> PreTrainedModel:
    install_cpu_ops()
    torch.manual_seed(0)
    config = NemotronHConfig(
        hidden_size=32, vocab_size=WORDS, num_attention_heads=4, num_key_value_heads=2, head_dim=8, mamba_num_heads=4,
        mamba_head_dim=8, n_groups=2, ssm_state_size=8, conv_kernel=4, chunk_size=32, n_routed_experts=4,
        num_experts_per_tok=2, moe_intermediate_size=16, moe_shared_expert_intermediate_size=16, intermediate_size=48,
        initializer_range=0.3, eos_token_id=7, pad_token_id=0, **SHAPES[shape],
    )  # fmt: skip
    model = NemotronHForCausalLM._from_config(config).eval()
    lift_time_step_limit(model)
    for name, parameter in model.named_parameters():
        if name.endswith("conv1d.bias"):  # zero at first
            torch.nn.init.uniform_(parameter, -1, 1)
    assert why_not(model) is None
    return model


def sampled(model: PreTrainedModel, count: int = 20) -> tuple[list[list[int]], list[Answer]]:
    pick = random.Random(1)
    prompts = [[pick.randrange(8, WORDS) for _ in range(pick.randint(1, 50))] for _ in range(count)]
    prompts += prompts[:3]
    draws = torch.rand(len(prompts), MOST, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    return prompts, sample(model, prompts, draws, [7])


def padded(prompts: Sequence[Sequence[int]], answers: Sequence[Answer], left: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Ids, mask, and where the answers are."""
    width = max(len(p) + len(a.ids) for p, a in zip(prompts, answers, strict=True)) + 3
    ids, mask = torch.full((len(prompts), width), 9), torch.zeros(len(prompts), width, dtype=torch.int64)
    wanted = torch.zeros(len(prompts), width, dtype=torch.bool)
    for row, (prompt, answer) in enumerate(zip(prompts, answers, strict=True)):
        whole = [*prompt, *answer.ids]
        start = width - len(whole) if left else 0
        ids[row, start : start + len(whole)] = torch.tensor(whole)
        mask[row, start : start + len(whole)] = 1
        wanted[row, start + len(prompt) : start + len(whole)] = True
    return ids, mask, wanted


def scored(model: PreTrainedModel, prompts: Sequence[Sequence[int]], answers: Sequence[Answer], left: bool) -> Scores:
    ids, mask, wanted = padded(prompts, answers, left)
    found = score(model, ids, places_of_mask(mask), wanted, 1.0)
    return Scores(found.logps[wanted], found.entropy[wanted], None)


@pytest.mark.parametrize("shape", SHAPES)
def test_every_way_gives_the_bits_that_were_sampled_with(shape: str) -> None:
    model = model_of(shape)
    prompts, answers = sampled(model)
    lengths = {len(answer.ids) for answer in answers}
    assert len(lengths) > 1 and MOST in lengths  # some ended early, and the batch became smaller on the way
    assert len({tuple(answer.ids) for answer in answers}) == len(answers)
    logps = torch.tensor([logp for answer in answers for logp in answer.logps])

    assert torch.equal(scored(model, prompts, answers, left=True).logps.detach(), logps)  # with a graph, as in training
    with torch.no_grad():
        assert torch.equal(scored(model, prompts, answers, left=False).logps, logps)
        parts = [scored(model, prompts[k : k + 3], answers[k : k + 3], left=True).logps for k in range(0, 23, 3)]
        assert torch.equal(torch.cat(parts), logps)
        packs = [packed(model, prompts[k : k + 7], answers[k : k + 7]) for k in range(0, 23, 7)]
        assert torch.equal(torch.cat(packs), logps)

    both = [*zip(prompts, answers, strict=True)]
    splits = [len(prompt) + k % len(answer.ids) for k, (prompt, answer) in enumerate(both)]
    whole = [[*prompt, *answer.ids] for prompt, answer in both]
    again = follow(model, whole, splits)
    for answer, prompt, split, found in zip(answers, prompts, splits, again, strict=True):
        assert found == answer.logps[split - len(prompt) :]


def test_of_no_token_at_all_there_is_nothing_to_say() -> None:
    model = model_of(next(iter(SHAPES)))
    ids = torch.tensor([[1, 2, 3]])
    found = score(model, ids, places_of_mask(torch.ones_like(ids)), torch.zeros_like(ids, dtype=torch.bool), 1.0)
    assert not found.logps.any() and not found.entropy.any()
    found.logps.sum().backward()  # as where every completion of a pass was cut
    gradients = [weight.grad for weight in model.parameters() if weight.grad is not None]
    assert gradients and not any(gradient.any() for gradient in gradients)


def packed(model: PreTrainedModel, prompts: Sequence[Sequence[int]], answers: Sequence[Answer]) -> Tensor:
    ids: list[int] = []
    starts, wanted = [], []
    for prompt, answer in zip(prompts, answers, strict=True):
        starts.append(len(ids))
        ids += [*prompt, *answer.ids]
        wanted += [False] * len(prompt) + [True] * len(answer.ids)
    places = places_of_starts([starts], len(ids))
    return score(model, torch.tensor([ids]), places, torch.tensor([wanted]), 1.0).logps[torch.tensor([wanted])]


@pytest.mark.parametrize("shape", SHAPES)
def test_values_and_gradients_are_those_of_transformers(shape: str) -> None:
    model = model_of(shape)
    prompts, answers = sampled(model, 6)
    ids, mask, wanted = padded(prompts, answers, left=True)
    names, parameters = zip(*model.named_parameters(), strict=True)
    ours = scored(model, prompts, answers, left=True).logps
    logits = model(input_ids=ids, attention_mask=mask, use_cache=False).logits[:, :-1]
    theirs = logits.log_softmax(-1).gather(2, ids[:, 1:, None])[..., 0][wanted[:, 1:]]
    assert (ours - theirs).abs().max() < 2e-5
    weights = torch.linspace(-1, 1, len(ours))
    got = torch.autograd.grad((ours * weights).sum(), parameters, allow_unused=True)
    want = torch.autograd.grad((theirs * weights).sum(), parameters, allow_unused=True)
    largest = max(float(gradient.norm()) for gradient in want if gradient is not None)
    for name, mine, other in zip(names, got, want, strict=True):
        assert (mine is None) == (other is None), name
        if mine is not None and other is not None:
            assert (mine - other).norm() < 1e-4 * max(float(other.norm()), 1e-3 * largest), name


def test_adapters_are_sampled_as_they_are_trained() -> None:
    model = model_of("super")
    wrapped = get_peft_model(model, LoraConfig(r=4, target_modules=["q_proj", "in_proj", "up_proj"]))
    for name, parameter in wrapped.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter)
    prompts, answers = sampled(model, 8)
    logps = torch.tensor([logp for answer in answers for logp in answer.logps])
    with torch.no_grad():
        assert torch.equal(scored(model, prompts, answers, left=True).logps, logps)
        with wrapped.disable_adapter():
            assert not torch.equal(scored(model, prompts, answers, left=True).logps, logps)


def test_temperature_and_top_p() -> None:
    logps = torch.tensor([[0.5, 0.3, 0.15, 0.05]]).log().expand(4, 4)
    draws = torch.tensor([0.0, 0.49, 0.51, 0.999], dtype=torch.float64)
    assert drawn(logps, draws, 1.0).tolist() == [0, 0, 1, 3]
    assert drawn(logps, draws, 0.45).tolist() == [0, 0, 0, 0]
    assert drawn(logps, draws, 0.7).tolist() == [0, 0, 0, 1]
    model, prompts = model_of("dense"), [[9, 10, 11], [12]]
    draws = torch.rand(2, 4, dtype=torch.float64)
    greedy = [answer.ids for answer in sample(model, prompts, draws, [], temperature=0)]
    assert greedy == [answer.ids for answer in sample(model, prompts, draws, [], temperature=1e-4)]


def test_what_keeps_a_model_from_it_is_said() -> None:
    model = model_of("nano")
    assert why_not(model.to(torch.bfloat16)) == "its weights are not float32"
    torch.set_num_threads(2)
    try:
        assert "run.threads=1" in (why_not(model.to(torch.float32)) or "")
    finally:
        torch.set_num_threads(1)


def test_the_load_of_experts_is_that_of_the_tokens_whoever_computes_it_and_however_it_is_padded() -> None:
    model, load = model_of("nano").train(), ExpertLoad()
    load.watch(model)
    pick = torch.Generator().manual_seed(3)
    rows = [torch.randint(8, WORDS, (length,), generator=pick) for length in (5, 19, 11)]
    for row in rows:
        model(input_ids=row[None])
    alone = load.take()
    ids = torch.stack([torch.nn.functional.pad(row, (25 - len(row), 0)) for row in rows])
    mask = (ids != 0).long()
    model(input_ids=ids, attention_mask=mask)
    assert load.take() == alone
    score_exactly(model, 1.0, [])
    model(input_ids=ids, attention_mask=mask, labels=ids.masked_fill(mask == 0, -100), fused_lm_head=True)
    assert load.take() == alone
