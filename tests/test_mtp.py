"""`-c tiny_mtp`: the tiny model learns to predict further tokens, too, as the recipes of Super do."""

import json
from pathlib import Path

from support import SHORT, nemotron


def test_the_loss_of_further_tokens_falls_and_their_block_is_in_the_model(run, tmp_path: Path) -> None:
    run(*nemotron("super3", "pretrain", "-c", "tiny_mtp", *SHORT["pretrain"], "train.train_iters=20"))
    model = tmp_path / "home" / "artifacts" / "super3-pretrain-model" / "v1"
    logged = [json.loads(line) for line in (model / "metrics.jsonl").read_text().splitlines()]
    for name in ("mtp_loss/1", "mtp_loss/2"):
        values = [entry[name] for entry in logged if name in entry]
        assert len(values) == 20 and sum(values[-5:]) < sum(values[:5]), name
    assert json.loads((model / "config.json").read_text())["num_nextn_predict_layers"] == 1
    weights = json.loads((model / "manifest.json").read_text())["files"]
    assert "model.safetensors" in weights
    header = (model / "model.safetensors").read_bytes()[:100_000]
    assert b'"mtp.layers.0.' in header
