"""Multi-token prediction and load balancing of engine `transformers` are those of megatron-core, from the same weights.

Two depths through one block of attention and experts, the recipes' weight of their loss, and an auxiliary loss much
heavier than the recipes', so that its gradient counts.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.megatron, pytest.mark.slow]
PROGRAM = Path(__file__).with_name("megatron_mtp.py")
LAYERS, EXPERTS, KINDS = 4, 8, 39
VALUES, GRADIENTS = 1e-5, 1e-4


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> dict:
    folder = tmp_path_factory.mktemp("weights")
    done = subprocess.run([sys.executable, PROGRAM, folder], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_logits_and_the_losses_of_all_depths_agree(measured: dict) -> None:
    ours, theirs = measured["ours"], measured["theirs"]
    print(measured["logits"], ours, theirs)
    assert measured["logits"] <= VALUES
    assert ours["loss"] == pytest.approx(theirs["loss"], rel=VALUES)
    assert len(ours["mtp_losses"]) == 2
    assert ours["mtp_losses"] == pytest.approx(theirs["mtp_losses"], rel=VALUES)


def test_auxiliary_losses_agree(measured: dict) -> None:
    ours, theirs = (measured[side]["load_balancing_losses"] for side in ("ours", "theirs"))
    assert len(ours) == LAYERS
    assert ours == pytest.approx(theirs, rel=VALUES)


def test_every_kind_of_parameter_gets_the_same_gradient(measured: dict) -> None:
    for kind, error in sorted(measured["worst"].items()):
        print(f"{kind:58} {error:.1e}")
    assert measured["names_differ"] == []
    assert len(measured["worst"]) == KINDS
    assert max(measured["worst"].values()) <= GRADIENTS
    assert measured["grad_norm"][0] == pytest.approx(measured["grad_norm"][1], rel=VALUES)


def test_tokens_are_counted_and_corrections_moved_alike(measured: dict) -> None:
    assert measured["ours"]["tokens"] == measured["theirs"]["tokens"]
    assert len(measured["corrections"]) == LAYERS
    for ours, theirs in measured["corrections"]:
        assert len(ours) == EXPERTS
        assert ours == theirs
