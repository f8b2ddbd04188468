"""Sequences that join, grow and leave get the logits of a plain pass over all of their tokens."""

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from peft import LoraConfig, inject_adapter_in_model
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    NemotronHConfig,
    NemotronHForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from nemotron_engines.decoding.direct import BLOCK, Columns, Direct, sequences_of, why_not
from nemotron_engines.decoding.general import SHARED, General, joins, prefill
from nemotron_engines.decoding.greedy import likeliest
from nemotron_engines.kernels.mamba_install import install_cpu_ops, lift_time_step_limit

SIZES: dict[str, Any] = {
    "vocab_size": 60, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "initializer_range": 0.3, "max_position_embeddings": 256,
}  # fmt: skip
TURNING = {"rope_type": "llama3", "rope_theta": 500.0, "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
           "original_max_position_embeddings": 16}  # fmt: skip


HYBRID: dict[str, Any] = {
    "hybrid_override_pattern": "M*-EM", "hidden_size": 32, "vocab_size": 60, "num_attention_heads": 4, "head_dim": 8,
    "num_key_value_heads": 2, "mamba_num_heads": 4, "mamba_head_dim": 8, "n_groups": 2, "ssm_state_size": 8,
    "chunk_size": 16, "conv_kernel": 4, "n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16,
    "intermediate_size": 48, "moe_shared_expert_intermediate_size": 16, "initializer_range": 0.3,
}  # fmt: skip
LATENT: dict[str, Any] = {
    "moe_latent_size": 8, "n_routed_experts": 8, "n_group": 4, "topk_group": 2, "norm_topk_prob": False,
    "mlp_bias": True, "use_bias": True, "use_conv_bias": False,
}  # fmt: skip


def hybrid(**others: Any) -> Any:
    install_cpu_ops()
    model: Any = NemotronHForCausalLM(NemotronHConfig(**HYBRID | others))
    lift_time_step_limit(model)
    return model


MODELS = {
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**SIZES, rope_parameters=TURNING, tie_word_embeddings=True)),
    "llama with biases": lambda: LlamaForCausalLM(LlamaConfig(**SIZES, attention_bias=True, mlp_bias=True)),
    "mistral": lambda: MistralForCausalLM(MistralConfig(**SIZES, sliding_window=None)),
    "qwen2": lambda: Qwen2ForCausalLM(Qwen2Config(**SIZES)),
    "qwen3": lambda: Qwen3ForCausalLM(Qwen3Config(**SIZES, head_dim=16)),
    "nemotron_h": hybrid,
    "nemotron_h, latent experts": lambda: hybrid(**LATENT),
}


def made(name: str) -> Any:
    torch.manual_seed(0)
    model: Any = MODELS[name]().eval()
    with torch.no_grad():
        for parameter in model.parameters():  # biases and norms, too
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return model


class Compared:
    """Sequences with random next tokens, whose logits are compared with those of a plain pass."""

    def __init__(self, model: Any, sequences: Any) -> None:
        self.model, self.sequences = model, sequences
        self.ids: list[list[int]] = []
        self._random = torch.Generator().manual_seed(1)

    def drawn(self, count: int) -> list[int]:
        return torch.randint(0, 60, (count,), generator=self._random).tolist()

    def join(self, *prompts: list[int]) -> None:
        logits, memory = prefill(self.model, prompts)
        self.sequences.add((memory, len(prompts[0])))
        self.ids += [list(prompt) for prompt in prompts]
        self.compare(logits, self.ids[-len(prompts) :])

    def step(self, count: int) -> None:
        for _ in range(count):
            tokens = self.drawn(len(self.ids))
            for ids, token in zip(self.ids, tokens, strict=True):
                ids.append(token)
            self.compare(self.sequences.step(torch.tensor(tokens)), self.ids)

    def keep(self, rows: list[int]) -> None:
        self.sequences.keep(rows)
        self.ids = [self.ids[row] for row in rows]

    def compare(self, logits: torch.Tensor, sequences: list[list[int]]) -> None:
        plain = [self.model(input_ids=torch.tensor([ids]), use_cache=False).logits[0, -1] for ids in sequences]
        torch.testing.assert_close(logits, torch.stack(plain), atol=2e-4, rtol=1e-4)


@pytest.mark.parametrize("kind", [Direct, General])
@pytest.mark.parametrize("name", MODELS)
@torch.inference_mode()
def test_sequences_that_join_and_leave_get_the_logits_of_a_plain_pass(name: str, kind: type) -> None:
    model = made(name)
    assert why_not(model) is None
    seen = Compared(model, kind(model))
    same = seen.drawn(5)
    seen.join(same, seen.drawn(5), same)
    seen.step(3)
    seen.join(seen.drawn(20))  # longer than all before
    seen.join([7])
    seen.step(2)
    seen.keep([4, 0, 3])
    seen.step(BLOCK + 2)  # the memory grows
    seen.keep([0])  # the longest ones leave
    seen.join(seen.drawn(3), seen.drawn(3))
    seen.step(2)
    seen.sequences.clear()
    seen.ids = []
    seen.join(seen.drawn(4))
    seen.step(1)


@pytest.mark.parametrize("kind", [Direct, General])
@torch.inference_mode()
def test_a_key_is_written_in_place(kind: type) -> None:
    model = made("llama")
    sequences: Any = kind(model)
    _, memory = prefill(model, [[1, 2, 3], [4, 5, 6]])
    sequences.add((memory, 3))
    places = set()
    for token in range(BLOCK - 4):
        sequences.step(torch.tensor([token, token + 1]))
        keys = sequences._cache.layers[1].keys if kind is General else sequences._parts[2][1]._memory
        places.add(keys.data_ptr())
    assert len(places) == 1


class Counted(TorchDispatchMode):
    """The operations inside, without views, and the shapes of their results."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, list[tuple[int, ...]]]] = []

    def __torch_dispatch__(self, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = operation(*args, **(kwargs or {}))
        if not operation.is_view:
            results = found if isinstance(found, tuple) else (found,)
            self.found.append((str(operation), [tuple(getattr(one, "shape", ())) for one in results]))
        return found


def steps_of(model: Any, kind: type, count: int) -> list[list[tuple[str, list[tuple[int, ...]]]]]:
    """The operations of each step after the first, for two sequences."""
    sequences: Any = kind(model)
    sequences.add((prefill(model, [[1, 2, 3], [4, 5, 6]])[1], 3))
    sequences.step(torch.tensor([7, 8]))  # makes the table of rotations
    steps = []
    for _ in range(count):
        with Counted() as counted:
            sequences.step(torch.tensor([9, 10]))
        steps.append(counted.found)
    return steps


@pytest.mark.parametrize(("name", "most"), [("llama", 51), ("qwen3", 61), ("nemotron_h", 104)])
@torch.no_grad()
def test_a_step_takes_few_operations_and_copies_no_keys(name: str, most: int) -> None:
    """Of two layers, and of five."""
    (direct,), (general,) = (steps_of(made(name), kind, 1) for kind in (Direct, General))
    assert len(direct) <= most < len(general) / 1.6
    assert not [operation for operation, _ in direct if "cat" in operation]


@pytest.mark.parametrize("name", ["llama", "nemotron_h", "nemotron_h, latent experts"])
@torch.no_grad()
def test_every_step_has_the_same_operations_and_shapes_and_waits_for_no_value(name: str) -> None:
    """Between two growths of the memory; what a captured graph of a step needs."""
    first, *others = steps_of(made(name), Direct, 5)
    assert others == [first] * 4
    assert not [name for name, _ in first if any(word in name for word in ("_local_scalar", "nonzero", "bincount"))]


@torch.inference_mode()
def test_a_large_model_is_not_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nemotron_engines.decoding.direct.LARGEST_COPY", 0)
    for name in ("llama with biases", "qwen3", "nemotron_h", "nemotron_h, latent experts"):
        model = made(name)
        seen = Compared(model, Direct(model))
        seen.join(seen.drawn(5), seen.drawn(5))
        seen.step(2)


@torch.inference_mode()
def test_equal_prompts_are_read_once() -> None:
    model, rows = made("llama"), []
    model.model.register_forward_pre_hook(
        lambda module, args, kwargs: rows.append(len(kwargs["input_ids"])), with_kwargs=True
    )
    logits, memory = prefill(model, [[1, 2], [3, 4], [1, 2], [1, 2]])
    assert rows == [2]
    assert (logits[0] == logits[2]).all() and not (logits[0] == logits[1]).all()
    assert (memory.layers[0].keys[3] == memory.layers[0].keys[0]).all()


@pytest.mark.parametrize("kind", [Direct, General])
@pytest.mark.parametrize("name", MODELS)
@torch.inference_mode()
def test_a_shared_beginning_is_read_once_and_long_prompts_in_parts(
    name: str, kind: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = made(name)
    seen = Compared(model, kind(model))
    begun = seen.drawn(SHARED + 3)
    prompts = [begun + seen.drawn(23) for _ in range(3)]
    monkeypatch.setattr("nemotron_engines.decoding.general.TOGETHER", 32)
    with passes(model) as read:
        seen.join(prompts[0], *prompts)
        assert read[:5] == [(1, 32), (1, 3), (3, 10), (3, 10), (3, 3)]
    seen.step(2)


@contextmanager
def passes(model: Any) -> Generator[list[tuple[int, ...]]]:
    """Rows and tokens of each pass of a model."""
    found: list[tuple[int, ...]] = []
    hook = model.base_model.register_forward_pre_hook(
        lambda module, args, kwargs: found.append(tuple(kwargs["input_ids"].shape)), with_kwargs=True
    )
    yield found
    hook.remove()


def test_the_prompts_of_an_evaluation_are_placed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not once for each of their lengths: that copied the keys of all before each time."""
    model, placed = made("llama"), []
    plain = Columns.placed
    monkeypatch.setattr(Columns, "placed", lambda self, parts: placed.append(len(parts)) or plain(self, parts))
    likeliest(model, Direct(model), [[1], [2, 3], [4, 5, 6], [7]], 1, lambda ids: False)
    assert placed == [3] * model.config.num_hidden_layers


@pytest.mark.parametrize("name", ["llama", "qwen2", "nemotron_h"])
def test_likeliest_continuations_are_those_of_generate(name: str) -> None:
    model = made(name)
    random = torch.Generator().manual_seed(2)
    prompts = [torch.randint(3, 60, (length,), generator=random).tolist() for length in (4, 9, 4, 1, 30)]
    ends = {5, 17, 21, 33, 40}
    expected = []
    for prompt in prompts:
        ids = torch.tensor([prompt])
        whole = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=40, do_sample=False,
                               eos_token_id=sorted(ends), pad_token_id=0)  # fmt: skip
        expected.append(whole[0, len(prompt) :].tolist())
    assert len({len(answer) for answer in expected}) > 2
    direct = Direct(model)
    for _ in range(2):  # also after others
        assert likeliest(model, direct, prompts, 40, lambda ids: ids[-1] in ends) == expected


def test_any_other_model_is_asked_as_it_is() -> None:
    model = made("llama")
    assert isinstance(sequences_of(model), Direct)
    reasons = {
        "has no direct step": lambda: type("Own", (LlamaForCausalLM,), {})(LlamaConfig(**SIZES)).eval(),
        "not float32 on a CPU": lambda: made("llama").to(torch.bfloat16),
        "being trained": lambda: made("llama").train(),
        "patched or have hooks": lambda: patched(made("llama")),
        "depends on the length": lambda: LlamaForCausalLM(
            LlamaConfig(**SIZES, rope_parameters={"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4})
        ).eval(),
        "attention has a window": lambda: MistralForCausalLM(MistralConfig(**SIZES, sliding_window=4)).eval(),
        "a window": lambda: LlamaForCausalLM(LlamaConfig(**SIZES, sliding_window=4)).eval(),
        "not plain matrices": lambda: widened(made("llama")),
        "layers are not plain": lambda: inject_adapter_in_model(LoraConfig(target_modules=["q_proj"]), made("llama")),
        "not multiples of 4": lambda: hybrid(moe_intermediate_size=18).eval(),
    }
    for reason, make in reasons.items():
        other = make()
        assert reason in (why_not(other) or "")
        assert isinstance(sequences_of(other), General)
    windowed = Qwen2Config(**SIZES, use_sliding_window=True, sliding_window=4, max_window_layers=0)
    assert "has a window" in (why_not(Qwen2ForCausalLM(windowed).eval()) or "")
    assert joins(model) and not joins(Qwen2ForCausalLM(windowed))


def patched(model: Any) -> Any:
    model.lm_head.forward = lambda states: states
    return model


def widened(model: Any) -> Any:
    class Wide(torch.nn.Linear):
        pass

    model.model.layers[0].mlp.up_proj = Wide(32, 48)
    return model
