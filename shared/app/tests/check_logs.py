"""Logs of jobs on clusters, made up in the words of NeMo-RL v0.7.0, ray.sub, NeMo-Gym and Automodel 0.7.0."""

import json
from collections.abc import Callable
from pathlib import Path

from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.event_file_writer import EventFileWriter


def falling(first: float, last: float, steps: int) -> Callable[[int], float]:
    """From one value in a straight line to another."""
    return lambda step: first + (last - first) * (step - 1) / max(1, steps - 1)


def sft_log(
    steps: int, loss: Callable[[int], float], valid: float = 0.05, seconds: float = 182.0, first: int = 1
) -> str:
    """The driver of NeMo-RL's fine-tuning: `steps` of 50, with a validation every 5."""
    parts = ["▶ Setting up compute cluster...\n  ✓ Ray cluster initialized with 8 nodes\n"]
    for step in range(first, steps + 1):
        parts.append(f"\n{'=' * 25} Step {step}/50 {'=' * 25}\n▶ Preparing batch...\n▶ Taking a training step...\n")
        if step % 5 == 0:
            parts.append(f"\n📊 Validation Results:\n    • Validation loss: {loss(step) + valid:.4f}\n")
        parts.append(
            f"\n📊 Training Results:\n  • Loss: {loss(step):.4f}\n  • Training FLOPS: 12000.00 TFLOPS\n"
            f"\n⏱️  Timing:\n  • Total step time: {seconds + 200 * (step == 1):.2f}s\n  • policy_training: 150.00s\n"
        )
    return "".join(parts)


def gym_bar(readings: list[int], colour: bool = True) -> str:
    """NeMo-Gym's progress bar as a terminal gets it: every reading takes the place of the one before."""
    prefix = "\x1b[36m(NemoGym pid=4711, ip=10.0.0.3)\x1b[0m " if colour else ""
    return "".join(
        f"\r{prefix}Collecting rollouts: {100 * done // 2048:3}%|{'█' * (done // 256)}| {done}/2048 [02:01<05:42]"
        for done in readings
    )


def grpo_step(step: int, reward: float, loss: float, seconds: float = 700.0) -> str:
    """One step of NeMo-RL's GRPO."""
    return (
        f"\n{'=' * 25} Step {step}/10 {'=' * 25}\n▶ Preparing batch...\n\n📊 Training Results:\n  • Loss: {loss:.4f}\n"
        f"  • Generation KL Error: 0.0012\n  • Avg Reward: {reward:.4f}\n  • Mean Generation Length: 812.5\n"
        f"\n⏱️  Timing:\n  • Total step time: {seconds:.2f}s\n"
    )


def automodel_log(steps: int, loss: Callable[[int], float], minutes: int = 0) -> str:
    """Automodel's output; it counts steps from 0."""
    lines = ["2026-08-10 15:40:00 | INFO | root | Trainable parameters percentage: 0.11%"]
    for step in range(steps):
        clock = f"15:{41 + minutes + step // 60:02}:{step % 60:02}"
        lines.append(
            f"2026-08-10 {clock} | \x1b[32mINFO\x1b[0m | root | step {step} | epoch 0 | loss {loss(step + 1):.4f} | "
            f"grad_norm 1.1754 | lr 1.00e-05 | mem 31.55 GiB | tps 6574.51(821.81/gpu) | num_label_tokens 26779"
        )
        if step % 100 == 99:
            lines.append(
                f'2026-08-10 {clock} | INFO | root | [val] name "default" | step {step} | epoch 0 | '
                f"loss {loss(step + 1) + 0.1:.4f} | lr 1.00e-05 | num_label_tokens 9000"
            )
    return "\n".join(lines) + "\n"


def nvidia_smi(percent: int) -> str:
    """As much of nvidia-smi's table as names two GPUs."""
    line = f"| N/A   45C    P0             512W /  700W |   71234MiB /  81559MiB |    {percent:3}%      Default |\n"
    return "|=========================================+========================+======================|\n" + 2 * line


def write_events(folder: Path, scalars: dict[str, dict[int, float]]) -> None:
    """A TensorBoard file, as NeMo-RL's logger leaves it in exp_NNN/tensorboard."""
    writer = EventFileWriter(str(folder))
    for tag, values in scalars.items():
        for step, value in values.items():
            summary = Summary(value=[Summary.Value(tag=tag, simple_value=value)])
            writer.add_event(Event(step=step, wall_time=step, summary=summary))
    writer.close()


def write_metrics(file: Path, entries: list[dict[str, float]]) -> None:
    """metrics.jsonl of a run of ours."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(json.dumps(entry) + "\n" for entry in entries))
