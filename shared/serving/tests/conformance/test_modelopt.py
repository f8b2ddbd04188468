"""ModelOpt on our models: what it writes is put right, and its weights are the model's.

Run with `ci/engine.sh modelopt`, which makes its environment.
"""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conformance_support import through
from passport_support import in_shards, with_rows

from nemotron_app.main import main
from nemotron_engines.modeling.stored import stored_in

pytestmark = pytest.mark.modelopt


@pytest.mark.parametrize(
    ("kind", "dtype", "quantised", "damaged", "change"),
    [("nano3_tiny", "bfloat16", r"backbone\.layers\.\d\.mixer\.(shared_)?experts\..*_proj", True, lambda folder: None),
     ("qwen2_tied", "float32", r"model\.layers\.\d\.(mlp|self_attn)\..*_proj", False, in_shards)],
)  # fmt: skip
def test_an_export_in_fp8_is_the_model(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    kind: str,
    dtype: str,
    quantised: str,
    damaged: bool,
    change: Callable[[Path], Any],
) -> None:
    store = with_rows(tmp_path, kind, change=change)
    words = ["export", "trained", str(tmp_path / "out"), "--home", str(store.home), "--dtype", dtype]
    assert main([*words, "--for", "vllm", "--quantize", "FP8"]) == 0
    said = re.search(r"had (\d+) damaged entries of (\d+)", "".join(capsys.readouterr()))
    assert said and (said[1] == said[2] if damaged else said[1] == "0")
    own, made = stored_in(store.resolve("trained").path), stored_in(tmp_path / "out")
    small = {name for name, one in made.items() if one.dtype == "F8_E4M3"}
    assert small == {name for name in own if re.fullmatch(rf"{quantised}\.weight", name)}
    told: dict[str, Any] = json.loads((tmp_path / "out" / "passport.json").read_text())
    kl, _ = through(told, "transformers, weights alone")
    assert told["same"] and 0 < kl < 0.1
    listed = json.loads((tmp_path / "out" / "config.json").read_text())["quantization_config"]["ignore"]
    assert (
        listed == json.loads((tmp_path / "out" / "hf_quant_config.json").read_text())["quantization"]["exclude_modules"]
    )
    assert "lm_head" in listed
    assert {f"{name}.weight" for name in listed} - {"lm_head.weight"} == {
        name for name, one in own.items() if name.endswith("weight") and len(one.shape) > 1 and name not in small
    } - {"lm_head.weight"}
