"""The tiny Super3 on a GPU against itself on a CPU, in float32 and in mixed precision, on packed rows."""

from collections.abc import Callable
from contextlib import nullcontext

import pytest
import torch
import transformers
from gpu_bench.kernels import differences
from transformers import NemotronHConfig, NemotronHForCausalLM

from nemotron_engines.kernels.mamba_install import install_cpu_ops, is_older, kernels_importable, lift_time_step_limit
from nemotron_engines.modeling.architecture import load_architecture
from nemotron_engines.modeling.packed import packed_inputs

pytestmark = pytest.mark.gpu
VOCABULARY = 512
ROWS, LENGTH = 4, 128
STARTS = [[0, 40, 99], [0, 64], [0], [0, 1, 3, 77]]


@pytest.fixture
def make_model() -> Callable[[str], NemotronHForCausalLM]:
    """The same weights on any device."""
    if is_older() and kernels_importable():
        pytest.skip(f"not run: transformers {transformers.__version__} passes no document numbers to the kernels")
    install_cpu_ops()

    def make(device: str) -> NemotronHForCausalLM:
        torch.manual_seed(0)
        config = NemotronHConfig(**load_architecture("super3_tiny", {"vocab_size": VOCABULARY}))
        model = NemotronHForCausalLM(config)
        lift_time_step_limit(model)
        return model.to(device)

    return make


def batch(device: str) -> dict[str, torch.Tensor]:
    """Four rows of packed documents."""
    ids = torch.randint(3, VOCABULARY, (ROWS, LENGTH), generator=torch.Generator().manual_seed(0))
    return {name: t.to(device) for name, t in {"input_ids": ids, **packed_inputs(STARTS, LENGTH)}.items()}


def loss_and_gradient(model: NemotronHForCausalLM, *, mixed: bool = False) -> dict[str, torch.Tensor]:
    """On the CPU, as float32."""
    device = str(model.device.type)
    inputs = batch(device)
    with torch.autocast(device, torch.bfloat16) if mixed else nullcontext():
        loss = model(**inputs, labels=inputs["input_ids"], use_cache=False).loss
    loss.backward()
    gradient = torch.cat([p.grad.flatten().float() for p in model.parameters() if p.grad is not None])
    return {"loss": loss.detach().float().cpu(), "gradient": gradient.cpu()}


def record(record_property: Callable[[str, object], None], name: str, difference: float, limit: float) -> None:
    for key, value in {"difference": difference, "of": name, "limit": limit}.items():
        record_property(key, value)
    assert difference <= limit


def test_loss_and_gradient_are_those_of_a_cpu(make_model, record_property) -> None:
    found = differences(loss_and_gradient(make_model("cuda")), loss_and_gradient(make_model("cpu")))
    assert found["loss"] <= 1e-3
    record(record_property, "gradient", found["gradient"], 2e-2)  # a token may go to another expert: near ties


def test_mixed_precision_gives_the_loss_of_float32(make_model, record_property) -> None:
    mixed, full = loss_and_gradient(make_model("cuda"), mixed=True), loss_and_gradient(make_model("cuda"))
    assert mixed["gradient"].isfinite().all()
    record(record_property, "loss", differences(mixed, full)["loss"], 1e-2)


@pytest.mark.parametrize("mixed", [False, True], ids=["float32", "bfloat16"])
def test_a_document_sees_nothing_of_the_one_before(make_model, record_property, mixed: bool) -> None:
    model = make_model("cuda").eval()
    inputs, boundary = batch("cuda"), STARTS[0][1]
    changed = {**inputs, "input_ids": inputs["input_ids"].clone()}
    changed["input_ids"][0, :boundary] = changed["input_ids"][0, :boundary].flip(0)
    with torch.no_grad(), torch.autocast("cuda", torch.bfloat16, enabled=mixed):
        before, after = (model(**one, use_cache=False).logits[0].float() for one in (inputs, changed))
    own = differences({"logits": after[:boundary]}, {"logits": before[:boundary]})["logits"]
    later = differences({"logits": after[boundary:]}, {"logits": before[boundary:]})["logits"]
    assert own > 1e-2, "the change did nothing to its own document"
    record(record_property, "logits", later, 1e-5 if not mixed else 1e-2)


def test_generation_gives_the_tokens_of_the_whole_sequence(make_model) -> None:
    """Each new token is the best one of a forward pass over all that came before; ties aside, most must agree."""
    model = make_model("cuda").eval()
    prompt = torch.randint(3, VOCABULARY, (8, 24), generator=torch.Generator().manual_seed(1)).cuda()
    made = model.generate(
        prompt,
        attention_mask=torch.ones_like(prompt),
        max_new_tokens=16,
        do_sample=False,
        eos_token_id=None,
        pad_token_id=0,
    )
    with torch.no_grad():
        best = model(made, use_cache=False).logits[:, prompt.shape[1] - 1 : -1].argmax(-1)
    assert (best == made[:, prompt.shape[1] :]).float().mean() >= 0.95
