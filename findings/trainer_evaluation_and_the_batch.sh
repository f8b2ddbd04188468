#!/usr/bin/env bash
# The guess: `eval_loss` of `transformers.Trainer` is the mean over all tokens of the evaluation rows. Training divides
# by the tokens of a whole step since version 4.46, whatever the micro batch, so `per_device_eval_batch_size` is about
# memory alone.
#
# What happens: each batch gives the mean over its own tokens, and `eval_loss` is the mean of these, weighted by rows.
# With rows of unequal length it is another number for each batch size, and at batch size 1 a row of three tokens
# counts as much as one of sixty. The same rows have one training loss.
#
# Why it matters: a comparison of two runs, the choice of a best checkpoint and early stopping read this number. A
# larger GPU with a larger batch gives another one for the same model. Weigh by tokens in `compute_metrics`, or compare
# at one batch size only.
#
# Versions: transformers 5.23.0, torch 2.13.0, accelerate 1.15.0. Date: 2026-11-29.
#
# Seen:
#   transformers 5.23.0 torch 2.13.0
#   mean over all tokens: 4.53
#   eval_loss:            4.86 in batches of 1, 4.55 in batches of 4, 4.53 in batches of 16
#   first training loss:  4.53 in batches of 1, 4.53 in batches of 4, 4.53 in batches of 16
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
uv venv --quiet environment
export VIRTUAL_ENV="$folder/environment"
uv pip install --quiet --exclude-newer 2026-11-28 \
    torch==2.13.0 transformers==5.23.0 accelerate==1.15.0 numpy==2.4.6

environment/bin/python - <<'PYTHON'
import sys

import torch
import transformers
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

print("transformers", transformers.__version__, "torch", torch.__version__.split("+")[0])
transformers.utils.logging.set_verbosity_error()
torch.manual_seed(0)
rows = [  # a third of the rows is long and ordinary, the others are short and odd
    torch.randint(3, 64, (60,)).tolist() if row % 3 == 0 else [5, 5, 5] for row in range(16)
]


def model() -> LlamaForCausalLM:
    torch.manual_seed(0)
    sizes = dict(vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4)
    made = LlamaForCausalLM(LlamaConfig(**sizes))
    with torch.no_grad():
        made.lm_head.weight.mul_(8)  # random weights are small, and so are differences of losses
    return made


def padded(batch: list[list[int]], fill: int) -> torch.Tensor:
    length = max(map(len, batch))
    return torch.tensor([row + [fill] * (length - len(row)) for row in batch])


def collate(batch: list[list[int]]) -> dict:
    return {
        "input_ids": padded(batch, 0),
        "attention_mask": padded([[1] * len(row) for row in batch], 0),
        "labels": padded(batch, -100),
    }


def losses(size: int) -> tuple[float, float]:
    """eval_loss, and the first training loss, of the same 16 rows in batches of so many."""
    arguments = TrainingArguments(
        output_dir="run",
        use_cpu=True,
        report_to=[],
        disable_tqdm=True,
        per_device_eval_batch_size=size,
        per_device_train_batch_size=size,
        gradient_accumulation_steps=16 // size,
        max_steps=1,
        logging_steps=1,
        save_strategy="no",
    )
    trainer = Trainer(model=model(), args=arguments, data_collator=collate, train_dataset=rows, eval_dataset=rows)
    trainer.remove_callback(transformers.PrinterCallback)
    evaluated = trainer.evaluate()["eval_loss"]
    trainer.train()
    return evaluated, next(entry["loss"] for entry in trainer.state.log_history if "loss" in entry)


with torch.no_grad():
    tokens = sum(len(row) - 1 for row in rows)
    each = [model()(torch.tensor([row]), labels=torch.tensor([row])).loss.item() * (len(row) - 1) for row in rows]
    mean = sum(each) / tokens
found = {size: losses(size) for size in (1, 4, 16)}
print(f"mean over all tokens: {mean:.2f}")
for place, name in enumerate(("eval_loss:           ", "first training loss: ")):
    print(name, ", ".join(f"{pair[place]:.2f} in batches of {size}" for size, pair in found.items()))

evaluated, trained = zip(*found.values())
if max(abs(loss - mean) for loss in trained) > 0.01 or abs(evaluated[0] - mean) < 0.05:
    sys.exit("changed: the loss of an evaluation, or of a training step, is weighted in another way")
PYTHON
