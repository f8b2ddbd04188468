"""A folder that looks like a NeMo-RL checkout of the pinned version, and whose programs only pretend to train."""

from pathlib import Path

import yaml

from nemotron_engines.nemo_rl.versions import VERSIONS, load_bases

BASE = "examples/configs/grpo_math_1B.yaml"
DRIVER = """
import argparse, json, os, sys
from pathlib import Path
import yaml
from safetensors.numpy import save_file
import numpy
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.event_file_writer import EventFileWriter

parser = argparse.ArgumentParser()
parser.add_argument("--config")
config = yaml.safe_load(open(parser.parse_args().config))
folder = Path(config["checkpointing"]["checkpoint_dir"])
done = max([int(path.name[5:]) for path in folder.glob("step_*")], default=0)
logs = Path(config["logger"]["log_dir"])
writer = EventFileWriter(str(logs / f"exp_{len(list(logs.glob('exp_*'))) + 1:03d}" / "tensorboard"))


def note(name, value, step):
    summary = Summary(value=[Summary.Value(tag=name, simple_value=value)])
    writer.add_event(Event(step=step, wall_time=step, summary=summary))


print("driver starts after step", done, "RANK" in os.environ, flush=True)
last = config["grpo"]["max_num_steps"]
fails_at = int(os.environ.get("FAKE_FAILS_AT", 0))
for step in range(done + 1, last + 1):
    note("train/loss", 1 / step, step)
    note("train/reward", step / last, step)
    note("train/token_mult_prob_error", float(os.environ.get("FAKE_MISMATCH", 1)), step)
    if step == fails_at:
        writer.close()
        sys.exit("out of memory, says the driver")
    if step % config["checkpointing"]["save_period"] == 0 or step == last:
        target = folder / f"tmp_step_{step}"
        weights = target / "policy" / "weights" / "model" / "consolidated"
        weights.mkdir(parents=True)
        save_file({"weight": numpy.full(3, step, dtype=numpy.float32)}, weights / "model.safetensors")
        (target / "training_info.json").write_text(json.dumps({"step": step}))
        target.rename(folder / f"step_{step}")
writer.close()
"""

GRPO = """
from typing import Any, Literal, NotRequired, TypedDict


class Optimizer(TypedDict):
    lr: float
    weight_decay: NotRequired[float | None]


class Policy(TypedDict):
    precision: Literal["bfloat16", "float32"]
    generation_batch_size: int
    generation: dict[str, Any]
    optimizer: Optimizer


class Algorithm(TypedDict):
    max_rollout_turns: int


class MasterConfig(TypedDict):
    policy: Policy
    grpo: Algorithm
    env: dict[str, Any]
"""
VLLM = """
from typing import TypedDict


class VllmConfig(TypedDict):
    backend: str
"""


def fake_checkout(folder: Path, version: str = "v0.7.0") -> Path:
    """Write the checkout; its base config is what the table has of the real one."""
    major, minor, patch = VERSIONS[version].package.split(".")
    base = yaml.safe_dump(load_bases(version)[BASE].values, sort_keys=False)
    info = f'MAJOR = {major}\nMINOR = {minor}\nPATCH = {patch}\nPRE_RELEASE = ""\n'
    files = {"nemo_rl/package_info.py": info, BASE: base, "examples/run_grpo.py": DRIVER}
    files |= {"nemo_rl/algorithms/grpo.py": GRPO, "nemo_rl/models/generation/vllm/config.py": VLLM}
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder
