"""The load of experts that a training logs is what its router chose."""

import pytest
import torch
from kinds_of_models import without_weights
from torch import nn

from nemotron_engines.kernels.experts import note_real_rows
from nemotron_engines.transformers.balance import ExpertLoad


class Gate(nn.Module):
    def __init__(self, experts: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(experts, 2))


class Experts(nn.Module):
    num_experts = 4

    def forward(self, rows: torch.Tensor, top_k_index: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        return rows


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate, self.experts = Gate(4), Experts()


class Model(nn.Module):
    """Two layers of four experts, and one without any between them."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Layer(), nn.Linear(2, 2), Layer()])

    def forward(self, first: list[list[int]], second: list[list[int]]) -> None:
        for layer, chosen in zip((self.layers[0], self.layers[2]), (first, second), strict=True):
            index = torch.tensor(chosen)
            layer.experts(torch.zeros(len(chosen), 2), index, torch.ones(index.shape))


def test_the_busiest_expert_is_told_per_layer_as_a_multiple_of_an_even_share() -> None:
    model, load = Model(), ExpertLoad()
    load.watch(model)
    model([[0, 1], [0, 2], [0, 3]], [[0, 1], [2, 3], [0, 1]])
    model([[0, 1]], [[2, 3]])  # a second micro batch of the same step
    # expert 0 of layer 0 has 4 of 8 choices, where 2 were even; each of layer 2 has 2
    assert load.take() == {"expert_load/0": 2.0, "expert_load/2": 1.0}
    assert load.take() == {}


def test_rows_that_a_trainer_says_are_padding_do_not_count() -> None:
    model, load = Model(), ExpertLoad()
    load.watch(model)
    note_real_rows(torch.tensor([[True, True, False]]))
    model([[0, 1], [2, 3], [0, 1]], [[0, 1], [0, 1], [2, 3]])
    note_real_rows(None)
    assert load.take() == {"expert_load/0": 1.0, "expert_load/2": 2.0}


def test_validation_and_sampling_do_not_count() -> None:
    model, load = Model(), ExpertLoad()
    load.watch(model)
    model.eval()
    model([[0, 1]], [[0, 1]])
    model.train()
    with torch.no_grad():
        model([[0, 1]], [[0, 1]])
    assert load.take() == {}


def test_a_model_without_experts_has_no_load() -> None:
    load = ExpertLoad()
    load.watch(nn.Sequential(nn.Linear(2, 2)))
    assert load.take() == {}


@pytest.mark.parametrize(
    ("name", "layers"),
    [
        ("jamba", {"1", "3"}), ("gpt_oss", {"0", "1", "2", "3"}), ("lfm2_moe", {"1", "2", "3"}),
        ("granite_moe_hybrid", {"0", "1", "2", "3"}), ("nemotron_h_experts_mtp", {"2", "mtp.1"}), ("llama", set()),
    ],
)  # fmt: skip
def test_other_architectures_call_their_routers_otherwise(name: str, layers: set[str]) -> None:
    model, load, watched = without_weights(name), ExpertLoad(), list[str]()
    load._counter = lambda layer, experts: watched.append(f"{layer} of {experts}")
    load.watch(model)
    assert watched == [f"{layer} of 4" for layer in sorted(layers)]
