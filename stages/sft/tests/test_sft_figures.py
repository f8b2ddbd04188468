"""Every figure that a step of fine-tuning logs, computed a second time by transformers and torch alone: documents of
packed rows one by one, in micro batches with different numbers of learnt tokens.
"""

import json
from collections.abc import Iterator, Sequence
from itertools import pairwise
from math import fsum
from pathlib import Path
from typing import Any

import pytest
import torch
from support import last_values_win, short
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import AutoModelForCausalLM
from zoo import questions, write

from nemotron_engines.transformers.supervised import ScheduledTrainer
from stages.sft import train

main = last_values_win(train.main)

STEPS, ROWS, MICRO, RATE, LEAST, WARMUP = 3, 4, 2, 1e-3, 1e-4, 1
WORDS = (
    *short("sft"), "--rehearsed", f"train.train_iters={STEPS}", f"train.eval_interval={STEPS}",
    f"train.global_batch_size={ROWS}", f"train.micro_batch_size={MICRO}", f"optimizer.lr={RATE}",
    f"optimizer.min_lr={LEAST}", "scheduler.lr_decay_style=linear", f"scheduler.lr_warmup_iters={WARMUP}",
    "data_prep.pack_size=96", "data_prep.split={train: 0.7, valid: 0.3, test: 0.0}", "train.eval_rows=4",
)  # fmt: skip
Document = tuple[Tensor, Tensor]
"""Ids, and for each the token after it that is learnt, or -100."""


def documents(row: Any) -> Iterator[Document]:
    """Those of a packed row, whose mask says of each token whether the next one is learnt."""
    ids, mask = torch.tensor(row.input_ids).long(), torch.tensor(row.loss_mask).bool()
    wanted = torch.where(mask, ids.roll(-1), -100)
    for first, last in pairwise([*row.seq_start_id.tolist(), len(ids)]):
        yield ids[first:last], wanted[first:last]


def loss_of(model: Any, rows: Sequence[Any]) -> Tensor:
    """Mean over all learnt tokens."""
    pairs = [(model(ids[None], use_cache=False).logits[0], wanted) for row in rows for ids, wanted in documents(row)]
    return cross_entropy(torch.cat([logits for logits, _ in pairs]), torch.cat([wanted for _, wanted in pairs]))


def test_each_figure_is_of_what_is_learnt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    weights, held = list[dict[str, Tensor]](), list[ScheduledTrainer]()
    compute = ScheduledTrainer.compute_loss

    def noted(self: ScheduledTrainer, model: Any, *args: Any, **kwargs: Any) -> Any:
        if model.training and len(weights) == self.state.global_step:
            held[:] = [self]
            weights.append({name: one.detach().clone() for name, one in model.state_dict().items()})
        return compute(self, model, *args, **kwargs)

    monkeypatch.setattr(ScheduledTrainer, "compute_loss", noted)
    monkeypatch.setenv("NEMOTRON_HOME", str(tmp_path / "home"))
    folder, file = write("qwen3", tmp_path / "model"), tmp_path / "chats.jsonl"
    chats = [[{"role": "user", "content": asked}, {"role": "assistant", "content": said * (n % 3 + 1)}]
             for n, (asked, said) in enumerate(questions())]  # fmt: skip
    file.write_text("".join(json.dumps({"messages": chat}) + "\n" for chat in chats))
    model_words = (f"run.model={folder}", f"data_prep.tokenizer.model={folder}", f"data_prep.source={file}")
    assert main([*WORDS, *model_words]) == 0
    made = tmp_path / "home/artifacts/super3-sft-model/v1"
    lines = [json.loads(line) for line in (made / "metrics.jsonl").read_text().splitlines()]
    steps, (valid,) = [line for line in lines if "loss" in line], [line for line in lines if "valid_loss" in line]

    model: Any = AutoModelForCausalLM.from_pretrained(folder)
    (trainer,), read = held, 0
    for step, line in enumerate(steps):
        rows = [trainer.train_dataset[step * ROWS + row] for row in range(ROWS)]
        read += sum(len(row.input_ids) for row in rows)
        model.load_state_dict(weights[step])
        model.zero_grad()
        loss = loss_of(model, rows)
        loss.backward()
        squares = [float((one.grad.double() ** 2).sum()) for one in model.parameters()]
        rate = [RATE / 2, RATE, (RATE + LEAST) / 2][step]
        expected = {"loss": float(loss.detach()), "grad_norm": fsum(squares) ** 0.5, "lr": rate, "tokens": read}
        assert {name: line[name] for name in expected} == pytest.approx(expected, rel=1e-4)
        assert line.keys() - expected.keys() == {"step", "seconds", "memory_gb", "tokens_per_second"}
    data: Any = trainer.eval_dataset
    published, rows = AutoModelForCausalLM.from_pretrained(made), [data[row] for row in range(len(data))]
    with torch.no_grad():
        assert valid["valid_loss"] == pytest.approx(float(loss_of(published, rows)), rel=1e-4)
    manifest = json.loads((made / "manifest.json").read_text())
    assert manifest["metrics"]["valid_loss"] == valid["valid_loss"]
