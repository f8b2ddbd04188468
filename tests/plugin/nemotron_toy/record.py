"""The recorder's work: the rows of each step in the order in which engine=transformers takes them."""

import shutil
from collections.abc import Iterator

from nemotron_data.formats.packed import PackedRow, read_packed
from nemotron_engines.rows import order_of_epoch
from nemotron_shared.engine.spec import Outcome, Task
from nemotron_shared.system.atomic import write_json
from nemotron_toy.recorder import RecorderSettings
from stages.sft.schema import SFTConfig


def record(task: Task[SFTConfig[RecorderSettings]]) -> Outcome:
    """Copy the model, and write record.json."""
    config, model, data = task.config, task.input("model"), task.input("data")
    rows = read_packed(data.path / "train.parquet")
    output = task.run.fresh_output()
    of_an_artifact = shutil.ignore_patterns("manifest.json", "metrics.jsonl")  # the store's own, of that result
    shutil.copytree(model.path, output, dirs_exist_ok=True, ignore=of_an_artifact)
    seen, steps = 0, []
    for step, numbers in enumerate(batches(config, len(rows)), 1):
        taken = [rows[number] for number in numbers]
        tokens = sum(len(row.input_ids) for row in taken)
        seen += tokens
        steps.append({"step": step, "rows": numbers, "tokens": tokens, "learnt": learnt(taken)})
        task.run.metrics.append(step, tokens=seen)
    sequences = sum(len(row.seq_start_id) for row in rows)
    write_json(
        output / "record.json", {"config": task.values, "rows": len(rows), "sequences": sequences, "steps": steps}
    )
    task.run.say(f"recorded {len(steps)} steps of {seen:,} tokens; the weights are those of {model.reference}")
    return Outcome(output, {"step": len(steps), "tokens": seen})


def batches(config: SFTConfig[RecorderSettings], count: int) -> Iterator[list[int]]:
    """The numbers of the rows of each step; an epoch's order is decided by the seed and its number."""
    size = config.train.global_batch_size
    for first in range(0, config.train.train_iters * size, size):
        places = (divmod(index, count) for index in range(first, first + size))
        yield [int(order_of_epoch(config.run.seed, epoch, count)[place]) for epoch, place in places]


def learnt(rows: list[PackedRow]) -> int:
    """How many tokens count in the loss."""
    return sum(int(row.loss_mask.sum()) for row in rows)
