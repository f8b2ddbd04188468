"""Whole runs of the engine automodel: each a copy of a process that has imported it, or processes of its own."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from support import Forked, last_values, run_forked

ROOT = Path(__file__).parents[4]
SHORT = ("-c", "tiny", "engine=automodel", "train.train_iters=8", "train.eval_interval=4", "train.eval_rows=8",
         "checkpoint.save_interval=4", "data_prep.synthetic_chats=400", "logger.tensorboard=false")  # fmt: skip
CHOICES = SimpleNamespace(attn_implementation="sdpa", allow_reference_kernels=False)
pytestmark = [pytest.mark.automodel, pytest.mark.slow]


def command(*overrides: str, processes: int = 1) -> list[str]:
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"] if processes > 1 else []
    script = str(ROOT / "stages" / "sft" / "train.py")
    return [sys.executable, *launcher, script, *last_values([*SHORT, *overrides])]


def environment(home: Path) -> dict[str, str]:
    return os.environ | {"NEMOTRON_HOME": str(home), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}


def run(home: Path, *overrides: str) -> str:
    """What a run says."""
    return said(run_forked(command(*overrides), home, environment(home)))


def run_anew(home: Path, *overrides: str, processes: int = 1) -> str:
    """What a run says that imports everything by itself, as a user's does."""
    words = command(*overrides, processes=processes)
    return said(subprocess.run(words, cwd=home, env=environment(home), capture_output=True, text=True, check=False))


def said(done: "subprocess.CompletedProcess[str]") -> str:
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stderr


def figures(home: Path) -> list[dict[str, Any]]:
    """metrics.jsonl of the newest model, without timings."""
    folder = newest(home)
    entries = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    timings = ("seconds", "tokens_per_second", "memory_gb")
    return [{key: value for key, value in entry.items() if key not in timings} for entry in entries]


def newest(home: Path) -> Path:
    folders = (home / "artifacts" / "super3-sft-model").glob("v*")
    return max(folders, key=lambda path: int(path.name[1:]))


def losses(home: Path, name: str = "loss") -> list[float]:
    return [entry[name] for entry in figures(home) if name in entry]


def weights(home: Path) -> dict[str, torch.Tensor]:
    from safetensors.torch import load_file

    return {name: value for file in newest(home).glob("*.safetensors") for name, value in load_file(file).items()}


@pytest.fixture(scope="module")
def lora(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The store of an uninterrupted run with adapters on one process."""
    home = tmp_path_factory.mktemp("lora")
    (home / "said").write_text(run(home))
    return home


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The store of an uninterrupted run over all weights on one process."""
    home = tmp_path_factory.mktemp("full")
    run(home, "engine.peft=null")
    return home


def test_the_shim_and_the_trained_share_are_announced(lora: Path) -> None:
    said = (lora / "said").read_text()
    assert "torch.cuda calls are stubbed, Mamba runs on our pure-torch kernels" in said
    assert "trained: 23,744 of 329,672 parameters (7.20%)\n[super3-sft-model] FSDP2 over 1 process\n" in said
    assert "never received a gradient" not in said
    assert losses(lora)[-1] < losses(lora)[0]


def test_only_adapted_weights_change_and_peft_reads_the_adapter(lora: Path) -> None:
    from peft import PeftModel

    from nemotron_engines.modeling.build import load_model, load_tokenizer, random_model

    folder = newest(lora)
    merged = load_model(folder, CHOICES).eval()
    section = SimpleNamespace(architecture="super3_tiny", overrides={})
    base = random_model(section, load_tokenizer(folder), 1234, CHOICES).eval()  # ty: ignore[invalid-argument-type]
    adapted = json.loads((folder / "adapter" / "adapter_config.json").read_text())["target_modules"]
    for name, value in base.state_dict().items():
        changed = not torch.equal(value, merged.state_dict()[name])
        assert changed == (name.removesuffix(".weight") in adapted), name
    assert not any(name.endswith("mixer.out_proj") for name in adapted)
    ids = torch.arange(6, 46).view(2, 20)
    with torch.no_grad():
        beside = PeftModel.from_pretrained(base, str(folder / "adapter")).eval()(ids, use_cache=False).logits
        assert torch.allclose(beside, merged(ids, use_cache=False).logits, atol=1e-5)


def test_the_passport_of_the_export_and_of_its_adapter_finds_nothing(
    lora: Path, full: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for member in ("app", "serving"):  # not in Automodel's environment
        monkeypatch.syspath_prepend(ROOT / "shared" / member / "src")
    from nemotron_engines.modeling.build import load_tokenizer, random_model, save_model
    from nemotron_serving.passport.alone import by_itself

    section = SimpleNamespace(architecture="super3_tiny", overrides={})
    base = random_model(section, load_tokenizer(newest(lora)), 1234, CHOICES)  # ty: ignore[invalid-argument-type]
    save_model(base, newest(lora), tmp_path / "base")
    for folder in (newest(lora), newest(lora) / "adapter", newest(full)):
        assert [*by_itself(folder).findings, *by_itself(folder, tmp_path / "base").findings] == []


def test_transformers_finds_the_validation_loss_that_automodel_logged(lora: Path) -> None:
    from nemotron_data.formats.packed import read_packed
    from nemotron_engines.modeling.build import load_model
    from nemotron_engines.rows import PackedCollator, PackedRows

    data = read_packed(lora / "artifacts" / "super3-sft-data" / "v1" / "valid.parquet")
    rows = PackedRows(data, 8, 1234)
    batch = PackedCollator()([rows[index] for index in range(len(rows))])
    labels = batch.pop("labels")
    with torch.no_grad():
        logits = load_model(newest(lora), CHOICES).eval()(**batch, use_cache=False).logits
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=-100)
    assert float(loss) == pytest.approx(losses(lora, "valid_loss")[-1], rel=1e-5)


def test_two_processes_train_what_one_does(full: Path, tmp_path: Path) -> None:
    told = run_anew(tmp_path, "engine.peft=null", processes=2)
    (kept,) = re.findall(r"FSDP2 over 2 processes: ([\d,]+) of 305,928 on the first\n", told)
    assert int(kept.replace(",", "")) < 0.6 * 305_928  # each has about half, and replicas would have all
    assert losses(tmp_path) == pytest.approx(losses(full), rel=1e-4)
    assert losses(tmp_path, "valid_loss") == pytest.approx(losses(full, "valid_loss"), rel=1e-4)
    one, two = weights(full), weights(tmp_path)
    assert one.keys() == two.keys()
    assert all(torch.allclose(one[name], two[name], atol=1e-3) for name in one)


def test_ddp_with_adapters_on_two_processes(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    shared = environment(tmp_path) | {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    log, words = tmp_path / "said", command("engine.strategy=ddp")
    with log.open("w") as file:
        ranks = [
            Forked(words, tmp_path, shared | {"RANK": str(rank), "LOCAL_RANK": str(rank)}, file, file)
            for rank in range(2)
        ]
        codes = [rank.wait() for rank in ranks]
    assert codes == [0, 0], log.read_text()
    assert "trained: 23,744 of 329,672 parameters" in log.read_text()
    assert "DDP over 2 processes: 329,672 of 329,672 on the first" in log.read_text()
    assert losses(tmp_path)[-1] < losses(tmp_path)[0]
    assert (newest(tmp_path) / "adapter" / "adapter_model.safetensors").is_file()


def interrupt(home: Path, number: signal.Signals, *overrides: str) -> None:
    """Start a run and send it a signal once a checkpoint is complete."""
    with (home / "first").open("w") as log:
        process = Forked(command(*overrides), home, environment(home), log, log)
        while process.poll() is None and not list(home.glob("runs/*/checkpoints/automodel/epoch_0_step_3/COMPLETE")):
            time.sleep(0.02)
        process.send_signal(number)
        process.wait()
    assert not (home / "artifacts" / "super3-sft-model").exists(), (home / "first").read_text()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_an_interrupted_run_goes_on_as_if_nothing_had_been(lora: Path, tmp_path: Path, number: signal.Signals) -> None:
    interrupt(tmp_path, number)
    assert "continuing from step" in run(tmp_path)
    assert figures(tmp_path) == figures(lora)
    assert all(torch.equal(value, weights(lora)[name]) for name, value in weights(tmp_path).items())


def test_a_killed_run_over_all_weights_goes_on(full: Path, tmp_path: Path) -> None:
    interrupt(tmp_path, signal.SIGKILL, "engine.peft=null")
    run(tmp_path, "engine.peft=null")
    assert figures(tmp_path) == figures(full)
    assert all(torch.equal(value, weights(full)[name]) for name, value in weights(tmp_path).items())


def test_chats_through_automodels_own_data_set(tmp_path: Path) -> None:
    from nemotron_data.synthetic.rows import chats

    rows = [json.dumps({"messages": row["messages"]}) + "\n" for row in chats(3, 360)]
    (tmp_path / "train.jsonl").write_text("".join(rows[:320]))
    (tmp_path / "valid.jsonl").write_text("".join(rows[320:]))
    files = ("engine.data=chat", "engine.chats.train=train.jsonl", "engine.chats.valid=valid.jsonl")
    said = run(tmp_path, *files, "engine.chats.seq_length=256")
    assert re.search(r"chat template: \S+/chat_template\.jinja\n(.*\n)*.*trained: ", said), said
    assert losses(tmp_path)[-1] < losses(tmp_path)[0]
    assert losses(tmp_path, "valid_loss")


def test_an_override_reaches_automodel(tmp_path: Path) -> None:
    theirs = ("step_scheduler.gc_every_steps=2", "peft.lora_A_init=uniform")
    short = ("train.train_iters=2", "train.eval_interval=2")
    run_anew(tmp_path, *(f"++engine.overrides.{one}" for one in theirs), *short)
    log = next(tmp_path.glob("runs/super3-sft-model-*/automodel-0.log")).read_text()
    assert "Garbage collect every steps: 2" in log
    assert "lora_A_init: uniform" in log


def test_weights_made_by_automodel_alone_are_caught(tmp_path: Path) -> None:
    """The reason for starting from a folder: built from a config, the class is left partly uninitialised."""
    program = """
import torch
from nemotron_engines.stand_ins.automodel import install as prepare
prepare()
import nemo_automodel
from transformers import AutoConfig, NemotronHConfig
from nemo_automodel.components.models.common.utils import BackendConfig
from nemotron_engines.automodel.loop import require_sane_weights
from nemotron_engines.modeling.architecture import load_architecture
fields = load_architecture("super3_tiny", {"vocab_size": 512})
config = NemotronHConfig(**fields, architectures=["NemotronHForCausalLM"])
parts = dict(attn="sdpa", linear="torch", experts="torch", dispatcher="torch", rope_fusion=False)
junk = [torch.full((200_000,), float("nan")) for _ in range(50)]; del junk
build = nemo_automodel.NeMoAutoModelForCausalLM.from_config
model = build(config, torch_dtype=torch.float32, backend=BackendConfig(**parts))
require_sane_weights(model)
"""
    file = tmp_path / "alone.py"
    file.write_text(program)
    done = run_forked([sys.executable, str(file)], tmp_path, os.environ)
    assert "UserError: before the first step, parameter" in done.stderr, done.stderr


def test_the_gpu_benchmark_of_this_engine_runs_at_toy_size(tmp_path: Path) -> None:
    program = str(ROOT / "benchmarks" / "gpu.py")
    words = [sys.executable, program, str(tmp_path), "--rehearse", "--minutes", "30", "--only", "automodel"]
    done = subprocess.run(words, env=environment(tmp_path), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (figures,) = json.loads((tmp_path / "gpu.json").read_text(encoding="utf-8"))["parts"].values()
    assert figures["status"] == "done" and figures["figures"]["step_ms"] > 0
