"""On-policy distillation: the loss of the README in float64, the same bytes after a stop, and what it refuses."""

from math import exp, fsum
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from support import last_values_win, made_in, make_model, short
from transformers import LlamaConfig

from stages.rl import train
from stages.rl.engines.trl.distill import DistillingTrainer, divergence

main = last_values_win(train.main)

SHORT = (
    *short("rl"), "data_prep.workers=1", "train.micro_batch_size=8", "grpo.temperature=1.3", "optimizer.lr=1e-3",
    "scheduler.lr_decay_style=constant", "scheduler.lr_warmup_iters=0", "run.teacher=./teacher",
)  # fmt: skip


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder and store, with the folder of a teacher."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NEMOTRON_HOME", str(tmp_path))
    make_model(tmp_path / "teacher")
    return tmp_path


def trained(home: Path, monkeypatch: pytest.MonkeyPatch, *words: str) -> tuple[list[dict[str, Any]], bytes]:
    """The log without times, and the weights, of the newest model; the teacher has random weights of another seed."""
    home.mkdir(exist_ok=True)
    monkeypatch.chdir(home)
    monkeypatch.setenv("NEMOTRON_HOME", str(home))
    make_model(home / "teacher")
    assert main((*SHORT, *words)) == 0
    return made_in(home, "super3-rl-model")


@pytest.mark.parametrize("kind", ["reverse", pytest.param("forward", marks=pytest.mark.slow)])
def test_it_is_the_loss_of_the_readme(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    terms: dict[int, list[float]] = {}
    compute = DistillingTrainer._compute_loss

    def noted(self: DistillingTrainer, model: Any, inputs: dict[str, Any]) -> Any:
        loss = compute(self, model, inputs)
        with torch.no_grad():
            both = [self._distributions(one, inputs).double() for one in (model, self.teacher)]
        for row, column in inputs["completion_mask"].nonzero().tolist():
            p, q = (one[row, column].tolist() for one in both)
            one, other = (p, q) if kind == "reverse" else (q, p)
            term = fsum(exp(a) * (a - b) for a, b in zip(one, other, strict=True))
            terms.setdefault(self.state.global_step + 1, []).append(term)
        return loss

    monkeypatch.setattr(DistillingTrainer, "_compute_loss", noted)
    lines, _ = trained(tmp_path, monkeypatch, f"distillation={{kl_type: {kind}}}", "train.train_iters=2")
    steps = {line["step"]: line for line in lines if "loss" in line}
    assert steps.keys() == terms.keys() == {1, 2}
    for step, line in steps.items():
        expected = fsum(terms[step]) / len(terms[step])
        assert line["loss"] == pytest.approx(expected, rel=1e-4) == pytest.approx(line["kl"], rel=1e-4)
    assert steps[2]["loss"] < steps[1]["loss"]


@pytest.mark.parametrize("wider", ["teacher", "student"])
def test_logits_of_no_token_are_left_out(monkeypatch: pytest.MonkeyPatch, wider: str) -> None:
    """As models of one family have: the same tokens, and rows beyond them for round numbers."""
    logits = torch.randn(2, 1, 5, 8, generator=torch.Generator().manual_seed(0))
    logits[..., 6:] += 9.0  # would be most of the distribution
    sizes = {"student": 6, "teacher": 6, wider: 8}
    student, teacher = (SimpleNamespace(config=LlamaConfig(vocab_size=sizes[name])) for name in ("student", "teacher"))
    trainer: Any = object.__new__(DistillingTrainer)
    trainer.temperature, trainer.model = 1.0, student
    trainer.accelerator = SimpleNamespace(unwrap_model=lambda model: model)
    trainer.learn_from(teacher, "reverse")
    inputs = {"prompt_ids": torch.ones(1, 2), "prompt_mask": torch.ones(1, 2), "completion_ids": torch.ones(1, 4),
              "completion_mask": torch.ones(1, 4)}  # fmt: skip
    for one, name in zip(logits, sizes, strict=True):
        given = SimpleNamespace(logits=one[..., : sizes[name]])
        found = trainer._distributions(lambda given=given, **_: given, inputs)
        assert torch.allclose(found, one[:, :-1, :6].log_softmax(-1))


@pytest.mark.slow
def test_a_stopped_training_ends_with_the_bytes_of_a_whole_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ("distillation={kl_type: reverse}", "data_prep.holdout.rows=7")
    whole = trained(tmp_path / "whole", monkeypatch, *words, "train.train_iters=4")
    trained(tmp_path / "parts", monkeypatch, *words, "train.train_iters=2")
    assert trained(tmp_path / "parts", monkeypatch, *words, "train.train_iters=4") == whole
    assert [line["step"] for line in whole[0] if "valid_reward" in line] == [2, 4]


def test_a_divergence_is_that_of_its_definition() -> None:
    p, q = torch.tensor([0.25, 0.75]).log(), torch.tensor([0.5, 0.5]).log()
    assert divergence(p, q, "reverse").item() == pytest.approx(0.130812, abs=1e-6)
    assert divergence(p, q, "forward").item() == pytest.approx(0.143841, abs=1e-6)
    assert divergence(p, p, "forward").item() == 0


REFUSED = [
    (("run.teacher=null", "distillation={kl_type: reverse}"), "distillation and run.teacher belong together"),
    ((), "distillation and run.teacher belong together"),
    (("distillation={kl_type: mixed}",), "distillation.kl_type"),
    (("distillation={kl_type: reverse}", "grpo.updates_per_step=2"), "distillation takes 1 update per step, not 2"),
    (
        ("distillation={kl_type: reverse}", "run.teacher=super3-rl-model:v7"),
        "run.teacher: no artifact 'super3-rl-model'",
    ),
    (("distillation={kl_type: reverse}", "engine=nemo_rl", "run.threads=null"), "and not by distillation"),
]


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ("<|im_start|>", "<|begins|>", "has another vocabulary than the model that learns from it"),
        ("{", "", "tokenizer.json: no tokenizer"),
    ],
)
def test_a_teacher_without_the_same_vocabulary_is_refused(
    before: str, after: str, message: str, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = home / "teacher" / "tokenizer.json"
    file.write_text(file.read_text().replace(before, after))
    words = (*SHORT, "distillation={kl_type: reverse}")
    assert main(words) == 2
    assert "error: run.teacher: " in (said := capsys.readouterr().err) and message in said
    make_model(home / "student")
    assert main((*words, "run.model=./student", "--dry-run")) == 1
    assert "run.teacher: " in (said := capsys.readouterr().out) and said.count(message) == 1


@pytest.mark.parametrize(("words", "message"), REFUSED)
def test_what_cannot_be_is_refused(
    words: tuple[str, ...], message: str, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main((*SHORT, *words)) == 2
    assert message in capsys.readouterr().err
