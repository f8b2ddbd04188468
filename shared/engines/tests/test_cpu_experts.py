"""The sorted and the grouped experts against the loop that transformers calls eager."""

import pytest
import torch
from transformers import NemotronHConfig, NemotronHForCausalLM
from transformers.models.nemotron_h.modeling_nemotron_h import NemotronHExperts

from nemotron_engines.kernels.experts import (
    SortedExperts,
    grouped_experts_forward,
    register_cpu_experts,
    register_grouped_experts,
    sorted_experts_forward,
)

torch.set_num_threads(1)


def experts(count: int = 5, width: int = 6) -> NemotronHExperts:
    config = NemotronHConfig(
        hidden_size=8, n_routed_experts=count, moe_intermediate_size=width, layers_block_type=["moe", "full_attention"]
    )
    config._experts_implementation = "eager"
    module = NemotronHExperts(config).double()
    for seed, parameter in enumerate(module.parameters()):
        parameter.data = torch.randn(
            parameter.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64
        )
    return module


def routed(tokens: int, chosen: list[int]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    random = torch.Generator().manual_seed(7)
    x = torch.randn(tokens, 8, generator=random, dtype=torch.float64, requires_grad=True)
    index = torch.stack(
        [torch.tensor(chosen)[torch.randperm(len(chosen), generator=random)[:2]] for _ in range(tokens)]
    )
    return x, index, torch.rand(tokens, 2, generator=random, dtype=torch.float64, requires_grad=True)


@pytest.mark.parametrize("ours", [sorted_experts_forward, grouped_experts_forward], ids=["sorted", "grouped"])
@pytest.mark.parametrize("chosen", [[0, 1, 2, 3, 4], [1, 3]], ids=["all", "some_without_tokens"])
def test_results_and_gradients_are_those_of_the_eager_loop(chosen, ours):
    module, (x, index, weight) = experts(width=8), routed(13, chosen)
    leaves = [x, weight, module.up_proj, module.down_proj]
    if ours is grouped_experts_forward:  # a grouped product has no float64
        module, x, weight = (
            module.float(),
            x.detach().float().requires_grad_(),
            weight.detach().float().requires_grad_(),
        )
        leaves = [x, weight, module.up_proj, module.down_proj]
    outputs = [forward(x, index, weight) for forward in (module, ours.__get__(module))]
    torch.testing.assert_close(outputs[1], outputs[0])
    upstream = torch.randn(13, 8, generator=torch.Generator().manual_seed(8)).to(x.dtype)
    gradients = [torch.autograd.grad(output, leaves, upstream) for output in outputs]
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other)


def test_grouped_experts_multiply_in_mixed_precision():
    module, (x, index, weight) = experts(width=8).float(), routed(13, [0, 1, 2, 3, 4])
    given = (x.detach().float(), index, weight.detach().float())
    module.act_fn.register_forward_hook(lambda _, given, made: made if not torch.is_autocast_enabled("cpu") else 1 / 0)
    kinds, product = set(), torch.nn.functional.grouped_mm

    def noted(*operands, **keywords):
        kinds.update(operand.dtype for operand in operands)
        return product(*operands, **keywords)

    with pytest.MonkeyPatch.context() as patch, torch.autocast("cpu", torch.bfloat16):
        patch.setattr(torch.nn.functional, "grouped_mm", noted)
        found = grouped_experts_forward(module, *given)
    module.act_fn._forward_hooks.clear()
    assert kinds == {torch.bfloat16}
    expected = module(*given)
    assert (found - expected).norm() < 1e-2 * expected.norm()


def test_gradients_are_those_of_finite_differences():
    module, (x, index, weight) = experts(count=3, width=3), routed(4, [0, 1, 2])
    inputs = (x, index, weight, module.up_proj, module.down_proj)
    assert torch.autograd.gradcheck(SortedExperts.apply, inputs)


@pytest.mark.parametrize("register", [register_cpu_experts, register_grouped_experts])
def test_a_model_can_ask_for_them_by_name(register):
    config = NemotronHConfig(
        hybrid_override_pattern="E*", hidden_size=16, vocab_size=32, num_attention_heads=2, num_key_value_heads=1,
        head_dim=8, n_routed_experts=4, moe_intermediate_size=8, moe_shared_expert_intermediate_size=8,
    )  # fmt: skip
    name, ids = register(), torch.arange(3, 13)[None]
    model = NemotronHForCausalLM._from_config(config, experts_implementation=name)
    assert model.config._experts_implementation == name
    found = model(ids).logits
    model.set_experts_implementation("eager")
    torch.testing.assert_close(found, model(ids).logits)
    assert name not in str(model.config.to_dict())


def test_experts_of_another_kind_are_refused():
    module, inputs = experts(), routed(3, [0, 1])
    module.act_fn = torch.nn.SiLU()
    with pytest.raises(ValueError, match="relu"):
        sorted_experts_forward(module, inputs[0], inputs[1], inputs[2])
