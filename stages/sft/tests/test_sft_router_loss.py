"""The loss of fine-tuning is that of the tokens alone, whatever a config.json asks for besides."""

import json
import math
from pathlib import Path

import pytest
from support import last_values_win, made_in, short
from zoo import write

from stages.sft import train

main = last_values_win(train.main)


def test_a_loss_of_the_routers_is_left_out_and_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write("qwen3_moe", tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(
        json.dumps(config | {"output_router_logits": True, "router_aux_loss_coef": 50.0})
    )
    monkeypatch.setenv("NEMOTRON_HOME", str(tmp_path / "home"))
    rows = [{"messages": [{"role": "user", "content": "2+2?"}, {"role": "assistant", "content": "4"}]}] * 16
    (tmp_path / "chats.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    words = [*short("sft"), f"run.model={folder}", f"data_prep.source={tmp_path / 'chats.jsonl'}"]
    assert main([*words, f"data_prep.tokenizer.model={folder}", "train.train_iters=1", "train.eval_interval=1"]) == 0
    assert "a loss of the routers (router_aux_loss_coef 50), which is left out" in capsys.readouterr().err
    lines, _ = made_in(tmp_path / "home", "super3-sft-model")
    assert 0 < lines[0]["loss"] < 3 * math.log(config["vocab_size"])
    (published,) = (tmp_path / "home").glob("artifacts/super3-sft-model/v1/config.json")
    assert json.loads(published.read_text())["output_router_logits"] is True
