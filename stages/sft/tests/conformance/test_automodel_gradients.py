"""Automodel's NemotronH and transformers' NemotronH are one function: loss and gradients of the same weights and rows.

Run with `-s` to see the table. It needs the packages of the extra `automodel`.
"""

import re
from collections import defaultdict
from pathlib import Path

import pytest
import torch
from automodel_support import (
    automodel_batch,
    automodel_model,
    gradients,
    logits_of,
    loss_of,
    rows,
    save_tiny,
    transformers_batch,
    transformers_model,
)

pytestmark = pytest.mark.automodel
TOLERANCE = 1e-4


@pytest.fixture(scope="module", autouse=True)
def shim() -> None:
    from nemotron_engines.stand_ins.automodel import install as prepare

    torch.set_num_threads(1)
    prepare()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, shim: None) -> Path:
    return save_tiny(tmp_path_factory.mktemp("tiny"))


def kind(name: str) -> str:
    """`backbone.layers.3.mixer.q_proj.weight` -> `mixer.q_proj.weight`, experts counted as one."""
    return re.sub(r"experts\.\d+\.", "experts.*.", re.sub(r"^backbone\.(layers\.\d+\.)?", "", name))


def relative(left: torch.Tensor, right: torch.Tensor) -> float:
    """Length of the difference over the length of the second."""
    return float((left - right).norm() / right.norm().clamp_min(1e-12))


def test_loss_and_gradients_agree(folder: Path) -> None:
    theirs, ours = automodel_model(folder), transformers_model(folder)
    losses = {}
    for name, model, batch in (
        ("automodel", theirs, automodel_batch(rows())),
        ("transformers", ours, transformers_batch(rows())),
    ):
        loss = loss_of(model, batch)
        loss.backward()
        losses[name] = float(loss)
    left, right = gradients(theirs), gradients(ours)
    assert left.keys() == right.keys()
    norms = [float(torch.stack([value.norm() for value in one.values()]).norm()) for one in (left, right)]
    worst: dict[str, float] = defaultdict(float)
    for name in left:
        worst[kind(name)] = max(worst[kind(name)], relative(left[name], right[name]))
    print(f"\n{'':44}{'automodel':>14}{'transformers':>14}{'relative':>12}")
    loss_error = abs(losses["automodel"] / losses["transformers"] - 1)
    print(f"{'loss':44}{losses['automodel']:14.7f}{losses['transformers']:14.7f}{loss_error:12.1e}")
    print(f"{'gradient norm':44}{norms[0]:14.7f}{norms[1]:14.7f}{abs(norms[0] / norms[1] - 1):12.1e}")
    for name, error in sorted(worst.items()):
        print(f"{name:72}{error:12.1e}")
    assert loss_error < TOLERANCE
    assert abs(norms[0] / norms[1] - 1) < TOLERANCE
    assert max(worst.values()) < TOLERANCE


def test_documents_of_a_row_do_not_see_each_other(folder: Path) -> None:
    model = automodel_model(folder)
    batch = automodel_batch(rows())
    changed = {**batch, "input_ids": batch["input_ids"].clone()}
    changed["input_ids"][0, :17] = 9
    with torch.no_grad():
        before, after = logits_of(model, batch), logits_of(model, changed)
    assert float((before[0, :17] - after[0, :17]).abs().max()) > 0.1
    assert float((before[0, 17:] - after[0, 17:]).abs().max()) < 1e-5
    assert torch.equal(before[1], after[1])


def test_small_time_steps_agree_because_the_lower_limit_is_lifted(tmp_path: Path) -> None:
    from transformers.models.nemotron_h.modeling_nemotron_h import NemotronHMamba2Mixer

    folder = save_tiny(tmp_path, dt_bias=-9.0)  # steps near 1e-4, below transformers' usual limit of 1e-3
    theirs, ours = automodel_model(folder).eval(), transformers_model(folder).eval()
    with torch.no_grad():
        wanted = logits_of(theirs, automodel_batch(rows()))[0]
        assert relative(logits_of(ours, transformers_batch(rows()))[0], wanted) < TOLERANCE
        for module in ours.modules():
            if isinstance(module, NemotronHMamba2Mixer):
                module.time_step_limit = (1e-3, float("inf"))
        assert relative(logits_of(ours, transformers_batch(rows()))[0], wanted) > TOLERANCE


def test_weights_that_nobody_set_are_refused(folder: Path) -> None:
    from nemotron_engines.automodel.loop import require_sane_weights
    from nemotron_shared.system.errors import UserError

    model = automodel_model(folder)
    require_sane_weights(model)
    with torch.no_grad():
        model.model.layers["0"].mixer.in_proj.weight[3, 4] = float("nan")
    with pytest.raises(UserError, match=r"layers\.0\.mixer\.in_proj\.weight holds nan: it was never initialised"):
        require_sane_weights(model)
    with torch.no_grad():
        model.model.layers["0"].mixer.in_proj.weight[3, 4] = 1e12
    with pytest.raises(UserError, match="never initialised"):
        require_sane_weights(model)
