"""Other people's architectures, with their tokenizers, go through every door that our own model goes through."""

import json
import os
import shutil
import sys
import urllib.request
from pathlib import Path

import pytest
from support import Forked, nemotron, script
from test_resume import digest
from zoo import ZOO, questions, write

from nemotron_app.main import main
from nemotron_serving.api import Api
from nemotron_serving.model import ready
from nemotron_serving.server import serving
from nemotron_shared.artifacts import Artifact

SHORT = ("train.train_iters=4", "train.eval_interval=4", "checkpoint.save_interval=2", "train.global_batch_size=2",
         "logger.tensorboard=false")  # fmt: skip
ASKED = ("Where does Ada keep the boat?", "Where does Jo keep the map now?", "Why?")

TURNS = {"nemotron_h": "4", "gpt2": "10", "opt": "10"}
"""The pass in which a training is stopped, after its first step: three others look at how documents stay apart, but
not in our own architecture, and two of the others have embeddings of positions, which count as passes, too."""


def write_chats(file: Path) -> None:
    lines = [{"messages": [{"role": "user", "content": asked}, {"role": "assistant", "content": answered}]}
             for asked, answered in questions()]  # fmt: skip
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))


def answers_of_transformers(folder: Path, length: int) -> list[str]:
    """What transformers alone answers, greedily, one question at a time."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModelForCausalLM.from_pretrained(folder).eval()
    found = []
    for asked in ASKED:
        ids = tokenizer.apply_chat_template(
            [{"role": "user", "content": asked}], add_generation_prompt=True, return_tensors="pt", return_dict=False
        )
        with torch.inference_mode():
            made = model.generate(
                ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=length, use_cache=True
            )
        found.append(
            tokenizer.decode(made[0, ids.shape[1] :], skip_special_tokens=True).lstrip("\n")
        )  # as the doors do
    return found


@pytest.mark.slow
@pytest.mark.parametrize("name", ZOO)
def test_an_architecture_goes_through_every_door(
    run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    write(name, tmp_path / "model")
    write_chats(tmp_path / "chats.jsonl")
    home = tmp_path / "home"
    tune = [*nemotron("finetune", "./model", "chats.jsonl"), *SHORT, "--json"]
    told = run(*tune)
    assert "rehearsed: one step" in told.stderr
    tuned = json.loads(told.stdout)
    assert tuned["answers"] and tuned["difference"]

    # stopped and continued, the training makes the same bytes
    stopped = tmp_path / "stopped"
    shutil.copytree(home / "artifacts" / "model-sft-data", stopped / "artifacts" / "model-sft-data")
    words = ["-c", str(Path(tuned["config"]) / "train-v1.yaml"), *SHORT, f"run.home={stopped}"]
    words += ["run.name=model", "run.data=model-sft-data:v1"]
    rehearsed = [*words, "--rehearsed"]  # by the first command
    stopper = [
        sys.executable,
        str(Path(__file__).parent / "stopper.py"),
        str(tmp_path / "counts"),
        TURNS.get(name, "7"),
    ]
    with (tmp_path / "log").open("w") as log:
        process = Forked([*stopper, "stages.sft.train", *rehearsed], tmp_path, os.environ, log, log)
    assert process.wait() == 130, (tmp_path / "log").read_text()
    assert "continuing from step" in run(*script("sft"), *rehearsed).stderr
    assert digest(stopped, "model-sft-model") == digest(home, "model-sft-model")
    assert "adapters merged" in run(*script("sft"), *words, "engine=transformers_lora").stderr
    assert "adapter/adapter_model.safetensors" in digest(stopped, "model-sft-model")

    exported = tmp_path / "exported"
    assert main(["export", tuned["model"], str(exported), "--home", str(home)]) == 0
    expected = answers_of_transformers(exported, 12)
    (tmp_path / "asked.txt").write_text("\n".join(ASKED))
    asking = [str(exported), str(tmp_path / "asked.txt"), "--out", str(tmp_path / "said.jsonl")]
    assert main(["generate", *asking, "--temperature", "0", "--max-tokens", "12"]) == 0
    said = [json.loads(line)["response"] for line in (tmp_path / "said.jsonl").read_text().splitlines()]
    assert said == expected
    capsys.readouterr()
    (tmp_path / "question").write_text(ASKED[0])
    with (tmp_path / "question").open() as question:
        monkeypatch.setattr(sys, "stdin", question)
        assert main(["chat", str(exported), "--temperature", "0", "--max-tokens", "12"]) == 0
    assert capsys.readouterr().out.rstrip("\n") == expected[0].rstrip("\n")
    with (
        ready(Artifact.external(exported), device="cpu", size=4, slow_kernels=False) as loaded,
        serving(Api(loaded, ("zoo",), 16).app(None)) as url,
    ):
        for asked, answer in zip(ASKED, expected, strict=True):
            body = {
                "model": "zoo",
                "messages": [{"role": "user", "content": asked}],
                "max_tokens": 12,
                "temperature": 0,
            }
            request = urllib.request.Request(
                f"{url}/v1/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
            )
            with urllib.request.urlopen(request) as response:
                assert json.load(response)["choices"][0]["message"]["content"] == answer
