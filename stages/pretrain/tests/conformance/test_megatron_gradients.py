"""transformers' NemotronH and megatron-core's hybrid compute the same loss and gradients from the same weights.

Left out here, and compared in test_megatron_mtp.py: the load-balancing loss (its coefficient is 0) and the update of
the routers' correction (the correction itself is set and used by both). Time steps have no lower limit in either: our
configs say `time_step_min: 0`, which megatron-core always does.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.megatron, pytest.mark.slow]
PROGRAM = Path(__file__).with_name("megatron_gradients.py")
LIMIT = 1e-4


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> dict:
    folder = tmp_path_factory.mktemp("weights")
    done = subprocess.run([sys.executable, PROGRAM, folder], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def relative(pair: list[float]) -> float:
    return abs(pair[0] - pair[1]) / abs(pair[0])


def test_loss_and_gradient_norm_agree(measured: dict) -> None:
    for name in ("loss", "grad_norm"):
        ours, theirs = measured[name]
        print(f"{name:10} transformers {ours:.7f}  megatron-core {theirs:.7f}  relative {relative([ours, theirs]):.1e}")
        assert relative(measured[name]) <= LIMIT


def test_every_kind_of_parameter_gets_the_same_gradient(measured: dict) -> None:
    for kind, error in sorted(measured["worst"].items()):
        print(f"{kind:58} {error:.1e}")
    assert measured["names_differ"] == []
    assert len(measured["worst"]) == 23
    assert max(measured["worst"].values()) <= LIMIT
