"""Schedules, checkpoints, metrics and rows: the parts of a training run that a resumed run relies on."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from moe_support import engine
from packed_support import add_document, pack_row
from torch.nn.functional import cross_entropy
from transformers import LlamaConfig, LlamaForCausalLM, TrainingArguments
from transformers.modeling_outputs import CausalLMOutput

from nemotron_data.formats.bin_idx import IndexedDataset, IndexedDatasetWriter
from nemotron_engines.rows import BlendedRows, DocumentRows, PackedCollator, PackedRows, choose
from nemotron_engines.transformers.supervised import ScheduledTrainer, losses_of_rows
from nemotron_engines.transformers.trainer import learning_rate_factor
from nemotron_shared.config.training import OptimizerSection, SchedulerSection
from nemotron_shared.tracking.completions import Completion, CompletionsLog
from nemotron_shared.tracking.metrics import MetricsLog


def factor(style: str, decay: int = 0, min_lr: float = 0.1, warmup: int = 2, iters: int = 12):
    optimizer = OptimizerSection(
        lr=1.0, min_lr=min_lr, weight_decay=0, adam_beta1=0.9, adam_beta2=0.95, adam_eps=1e-8, clip_grad=1
    )
    scheduler = SchedulerSection(lr_decay_style=style, lr_warmup_iters=warmup, lr_wsd_decay_iters=decay)
    return learning_rate_factor(optimizer, scheduler, iters)


@pytest.mark.parametrize("style", ["linear", "cosine", "constant", "WSD"])
def test_warmup_rises_to_the_peak(style: str) -> None:
    steps = [factor(style, decay=4)(step) for step in range(3)]
    assert steps == [pytest.approx(1 / 3), pytest.approx(2 / 3), pytest.approx(1)]


@pytest.mark.parametrize("style", ["linear", "cosine", "WSD"])
def test_decay_falls_to_the_floor(style: str) -> None:
    rate = factor(style, decay=4)
    values = [rate(step) for step in range(2, 13)]
    assert values == sorted(values, reverse=True)
    assert rate(12) == pytest.approx(0.1)


def test_wsd_is_stable_until_its_decay() -> None:
    rate = factor("WSD", decay=4)
    assert [rate(step) for step in range(2, 9)] == [1.0] * 7
    assert rate(9) < 1


@pytest.mark.parametrize(("warmup", "decay", "iters"), [(20, 150, 60), (50, 0, 10), (5, 5, 8), (0, 9, 5), (3, 3, 1)])
@pytest.mark.parametrize("style", ["linear", "cosine", "constant", "WSD"])
def test_a_short_training_reaches_the_peak_once_and_falls_after_it(
    style: str, warmup: int, decay: int, iters: int
) -> None:
    rate = factor(style, decay=decay, warmup=warmup, iters=iters)
    values = [rate(step) for step in range(iters)]
    top = values.index(1.0)
    assert top == min(warmup, iters - 1)
    assert values[: top + 1] == [pytest.approx((step + 1) / (top + 1)) for step in range(top + 1)]
    assert values[top:] == sorted(values[top:], reverse=True)
    assert rate(iters) == pytest.approx(1.0 if style == "constant" or (style == "WSD" and not decay) else 0.1)


@pytest.mark.parametrize("style", ["linear", "cosine", "WSD"])
@pytest.mark.parametrize("longer", [6, 20], ids=["resumed", "extended"])
def test_a_training_that_goes_on_has_the_rates_of_its_schedule_from_the_first_step_on(style: str, longer: int) -> None:
    import torch
    from torch.optim.lr_scheduler import LambdaLR

    from nemotron_engines.transformers.trainer import follow

    def begun(steps: int) -> LambdaLR:
        optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.3)
        return LambdaLR(optimizer, factor(style, decay=3, iters=steps))

    before, after = begun(6), begun(longer)
    for _ in range(5):
        before.optimizer.step()
        before.step()
    after.optimizer.load_state_dict(before.optimizer.state_dict())
    after.load_state_dict(before.state_dict())
    follow(after)
    for step in range(5, longer):
        expected = 0.3 * factor(style, decay=3, iters=longer)(step)
        assert after.optimizer.param_groups[0]["lr"] == after.get_last_lr()[0] == expected
        after.optimizer.step()
        after.step()


@pytest.mark.parametrize(
    ("style", "half", "three_quarters"),
    [("linear", 0.5, 0.25), ("cosine", 0.5, 0.5 - 0.5**1.5), ("WSD", 1 - 0.5**0.5, 1 - 0.75**0.5)],
)
def test_each_decay_has_its_shape(style: str, half: float, three_quarters: float) -> None:
    rate = factor(style, decay=8, min_lr=0.0, warmup=0, iters=8)
    assert [rate(4), rate(6)] == pytest.approx([half, three_quarters])


def test_metrics_are_cut_back_to_the_checkpoint(tmp_path: Path) -> None:
    log = MetricsLog(tmp_path / "metrics.jsonl")
    for step in range(1, 6):
        log.append(step, loss=1.0 / step)
    log.path.write_text(log.path.read_text() + '{"step": 6, "lo')  # a kill in the middle of a line
    assert [entry["step"] for entry in log.read()] == [1, 2, 3, 4, 5]
    log.cut_after(3)
    log.append(4, loss=0.25)
    assert [entry["step"] for entry in log.read()] == [1, 2, 3, 4]


@pytest.fixture
def documents(tmp_path: Path) -> IndexedDataset:
    with IndexedDatasetWriter(tmp_path / "docs", vocab_size=100) as writer:
        for number in range(7):
            add_document(writer, np.arange(number * 10, number * 10 + number + 2))
    return IndexedDataset(tmp_path / "docs")


def test_document_rows_hold_every_token_once_an_epoch(documents: IndexedDataset) -> None:
    rows = DocumentRows([documents], seq_length=5, num_rows=100, seed=3)
    stream = np.concatenate([rows[index]["input_ids"].numpy() for index in range(100)])
    everything = np.sort(np.concatenate([documents[index] for index in range(len(documents))]))
    for epoch in range(3):
        part = stream[epoch * documents.num_tokens : (epoch + 1) * documents.num_tokens]
        assert np.array_equal(np.sort(part), everything)


def test_document_rows_do_not_depend_on_what_was_read_before(documents: IndexedDataset) -> None:
    first = DocumentRows([documents], 5, 100, seed=3)
    second = DocumentRows([documents], 5, 100, seed=3)
    for index in (40, 2, 17):
        assert first[index]["input_ids"].tolist() == second[index]["input_ids"].tolist()
    other = DocumentRows([documents], 5, 100, seed=4)
    assert any(first[index]["input_ids"].tolist() != other[index]["input_ids"].tolist() for index in range(20))


def test_packed_rows_come_once_an_epoch_and_count_their_tokens() -> None:
    rows = [pack_row([([number] * (number + 2), [0] + [1] * (number + 1))]) for number in range(5)]
    data = PackedRows(rows, num_rows=15, seed=1)
    for epoch in range(3):
        seen = sorted(len(data[epoch * 5 + place].input_ids) for place in range(5))
        assert seen == [2, 3, 4, 5, 6]
    assert data.tokens_before(5) == 20
    assert data.tokens_before(7) == 20 + len(data[5].input_ids) + len(data[6].input_ids)


def test_the_collator_keeps_documents_and_padding_apart() -> None:
    long = pack_row([([5, 6, 7], [0, 1, 1]), ([8, 9], [0, 1])])
    batch = PackedCollator()([long, pack_row([([4, 3], [0, 1])])])
    assert batch["input_ids"].tolist() == [[5, 6, 7, 8, 9], [4, 3, 0, 0, 0]]
    assert batch["position_ids"].tolist() == [[0, 1, 2, 0, 1], [0, 1, 0, 1, 2]]
    assert batch["labels"].tolist() == [[6, 7, -100, 9, -100], [3, -100, -100, -100, -100]]
    assert batch["seq_idx"].tolist()[0] == [0, 0, 0, 1, 1]


def test_a_blend_keeps_to_its_weights_at_every_length() -> None:
    weights = np.array([5.0, 3.0, 1.5, 0.5])
    chosen = choose(weights, 5000)
    for length in (100, 1000, 5000):
        counts = np.bincount(chosen[:length], minlength=4)
        assert np.abs(counts - length * weights / weights.sum()).max() <= 6


def test_each_part_of_a_blend_is_read_in_its_own_order(documents: IndexedDataset) -> None:
    parts = [DocumentRows([documents], 5, 100, seed=3), DocumentRows([documents], 5, 100, seed=4)]
    blend = BlendedRows(parts, [2.0, 1.0], num_rows=60)
    for part in range(2):
        mine = [index for index in range(60) if blend.choice[index] == part]
        for place, index in enumerate(mine):
            assert blend[index]["input_ids"].tolist() == parts[part][place]["input_ids"].tolist()
    assert blend.realised_shares() == pytest.approx([2 / 3, 1 / 3], abs=0.03)


def test_figures_that_are_not_there_cost_no_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    from torch.utils.tensorboard import SummaryWriter
    from transformers import TrainerControl, TrainerState, TrainingArguments
    from transformers.utils import logging

    from nemotron_engines.transformers.callback import TensorBoardMetrics

    written, texts = [], []
    writer = SummaryWriter(str(tmp_path))
    writer.add_scalar = lambda name, value, step: written.append((name, value))
    writer.add_text = lambda name, text, step: texts.append((name, "    4+4=8" in text, step))
    log = CompletionsLog(tmp_path / "completions.jsonl")
    about = {"prompt": "?", "completion": "4+4=8", "expected": "8", "rewards": {}, "tokens": 1, "ended": "stopped"}
    log.append(7, [Completion(step=7, which=which, **about) for which in ("best", "worst")])
    logging.enable_propagation()
    try:
        for logs in ({"reward": 0.5, "reward_std": None}, {"eval_reward": None}):
            TensorBoardMetrics(writer, 10, log).on_log(
                TrainingArguments(str(tmp_path)), TrainerState(is_world_process_zero=True), TrainerControl(), logs=logs
            )
    finally:
        logging.disable_propagation()
    assert written == [("train/reward", 0.5)]
    assert texts == [("completions/best", True, 7), ("completions/worst", True, 7)], "once"
    assert caplog.messages == []


class Foreign(LlamaForCausalLM):
    """A model with code of its own: it shifts labels itself, and knows no `shift_labels`."""

    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor | None = None, **given: Any) -> CausalLMOutput:
        logits = super().forward(input_ids, position_ids=given["position_ids"]).logits
        if labels is None:
            return CausalLMOutput(logits=logits)
        return CausalLMOutput(cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten()), logits)


Foreign.__module__ = "transformers_modules.foreign"


@pytest.mark.parametrize("kind", [LlamaForCausalLM, Foreign])
def test_a_token_is_learnt_where_it_is_predicted(tmp_path: Path, kind: type[LlamaForCausalLM]) -> None:
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    model = kind(LlamaConfig(vocab_size=32, initializer_range=0.5, **sizes))
    rows = [pack_row([([5, 6, 7], [0, 1, 1]), ([8, 9], [0, 1])]), pack_row([([4, 3], [0, 1])])]
    collate = PackedCollator(tell_padding=True)
    trainer = ScheduledTrainer(
        engine=engine(),
        model=model,
        args=TrainingArguments(str(tmp_path), use_cpu=True, report_to=[]),
        data_collator=collate,
    )
    batch = collate(rows)
    logits = model(batch["input_ids"], position_ids=batch["position_ids"]).logits
    learnt = [(0, 0, 6), (0, 1, 7), (0, 3, 9), (1, 0, 3)]
    wanted = -sum(logits[row, place].log_softmax(-1)[token] for row, place, token in learnt) / len(learnt)
    assert trainer.compute_loss(model, dict(batch)).item() == pytest.approx(wanted.item())
    sums, counts = losses_of_rows(logits, batch["labels"]).sum(0).tolist()  # in validation
    assert (sums / counts, counts) == (pytest.approx(wanted.item()), len(learnt))
