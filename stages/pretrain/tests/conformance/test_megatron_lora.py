"""An adapter of ours goes into Megatron-Bridge's own LoRA classes, does the same there, and comes back."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.megatron, pytest.mark.slow]
PROGRAM = Path(__file__).with_name("megatron_lora.py")


def test_an_adapter_goes_to_bridge_and_comes_back(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, PROGRAM, tmp_path], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    print(found)
    assert found["tensors"] == 26
    assert found["names_differ"] == found["bits_differ"] == []
    assert found["moved"] > 0.1
    assert found["apart"] < 1e-5  # megatron-core with the adapter, and transformers
    assert found["apart_again"] < 1e-6  # what Bridge exported, as stock PEFT loads it
    assert found["config"] == {"r": 8, "lora_alpha": 16, "peft_type": "LORA"}
