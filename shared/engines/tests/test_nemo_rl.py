"""NeMo-RL's checkpoints, figures, driver and table, each by itself."""

import json
import math
import os
import sys
import threading
import time
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from nemo_rl_support import fake_checkout
from omegaconf import OmegaConf
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.event_file_writer import EventFileWriter

from nemotron_engines.nemo_rl.installation import Installation, require_known, run_driver, run_logged, type_fault
from nemotron_engines.nemo_rl.training import adopt, newest, publish, read_scalars, to_hugging_face, write_metrics
from nemotron_engines.nemo_rl.translate import refuse_repeated, resolved, with_variables
from nemotron_shared.system.errors import UserError
from nemotron_shared.system.stop import Stopped
from nemotron_shared.tracking.run import Run

MEGATRON = """
import sys; from pathlib import Path; import json, numpy; from safetensors.numpy import save_file
given = dict(zip(sys.argv[1::2], sys.argv[2::2])); out = Path(given["--hf-ckpt-path"]); out.mkdir()
save_file({"w": numpy.ones(2, dtype=numpy.float32)}, out / "model.safetensors")
(out / "config.json").write_text(json.dumps({"from": given["--megatron-ckpt-path"]}))
"""
DCP = """
import sys; from pathlib import Path; import torch
given = dict(zip(sys.argv[1::2], sys.argv[2::2])); out = Path(given["--hf-ckpt-path"]); out.mkdir()
shared = torch.arange(3.0); torch.save({"a": shared, "b": shared}, out / "pytorch_model.bin")
"""


@pytest.fixture
def installation(tmp_path: Path) -> Installation:
    """A checkout with converters that only write what they were told."""
    folder = tmp_path / "checkout" / "examples" / "converters"
    folder.mkdir(parents=True)
    (folder / "convert_megatron_to_hf.py").write_text(MEGATRON)
    (folder / "convert_dcp_to_hf.py").write_text(DCP)
    return Installation(tmp_path / "checkout", {}, "python")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    (tmp_path / "model").mkdir()
    for name in ("config.json", "tokenizer.json", "chat_template.jinja"):
        (tmp_path / "model" / name).write_text("{}")
    return tmp_path / "model"


def checkpoint(folder: Path, inside: str) -> Path:
    (folder / "policy" / "weights" / inside).mkdir(parents=True)
    (folder / "training_info.json").write_text("{}")
    return folder


def test_a_megatron_checkpoint_goes_through_its_converter(
    installation: Installation, model: Path, tmp_path: Path
) -> None:
    step = checkpoint(tmp_path / "step_3", "iter_0000000")
    to_hugging_face(installation, step, model, tmp_path / "out", tmp_path / "log")
    assert json.loads((tmp_path / "out" / "config.json").read_text())["from"].endswith("weights/iter_0000000")
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert names == {"model.safetensors", "config.json", "tokenizer.json", "chat_template.jinja"}


@pytest.mark.slow
def test_a_pickle_of_the_other_converter_becomes_safetensors(
    installation: Installation, model: Path, tmp_path: Path
) -> None:
    from safetensors.torch import load_file

    step = checkpoint(tmp_path / "step_3", "model")
    to_hugging_face(installation, step, model, tmp_path / "out", tmp_path / "log")
    assert not (tmp_path / "out" / "pytorch_model.bin").exists()
    tensors = load_file(tmp_path / "out" / "model.safetensors")
    assert {name: tensor.tolist() for name, tensor in tensors.items()} == {"a": [0, 1, 2], "b": [0, 1, 2]}


def test_a_failed_conversion_is_told_with_its_last_lines(
    installation: Installation, model: Path, tmp_path: Path
) -> None:
    step = checkpoint(tmp_path / "step_3", "iter_0000000")
    (installation.checkout / "examples" / "converters" / "convert_megatron_to_hf.py").write_text(
        "raise OSError('full')"
    )
    with pytest.raises(UserError, match=r"(?s)converter failed.*OSError: full"):
        to_hugging_face(installation, step, model, tmp_path / "out", tmp_path / "log")


def test_the_newest_checkpoint_is_the_highest_whole_step(tmp_path: Path) -> None:
    for name in ("step_9", "step_10", "tmp_step_11", "step_x"):
        (tmp_path / name).mkdir()
    found = newest(tmp_path)
    assert found is not None and found[0] == 10
    assert newest(tmp_path / "step_9") is None


def ended(
    task: tuple[int, int], folder: Path, model: Path, installation: Installation, said: list[str] | None = None
) -> int:
    """The step that is published, of a training of so many steps after which NeMo-RL has so many epochs."""
    steps, epochs = task
    checkpoint(folder / "checkpoints" / "step_3", "iter_0000003")
    run = Run(folder, "rl")
    run.say = (said if said is not None else []).append  # ty: ignore[invalid-assignment]
    config = SimpleNamespace(train=SimpleNamespace(train_iters=steps), engine=SimpleNamespace(version="v0.7.0"))
    places: Any = SimpleNamespace(checkpoints=str(folder / "checkpoints"), model=str(model))
    given: Any = SimpleNamespace(run=run, config=config)
    return publish(given, installation, places, epochs).metadata["step"]


def test_a_training_that_nemo_rl_ended_early_is_not_published(
    installation: Installation, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert ended((3, 3), tmp_path / "whole", model, installation) == 3
    with pytest.raises(UserError, match="ended unexpectedly after step 3 of 4"):
        ended((4, 4), tmp_path / "short", model, installation)
    monkeypatch.setenv("NEMOTRON_MUST_SAVE_BY", "00:00:10:00")
    with pytest.raises(Stopped, match="to finish before the job's time limit"):
        ended((4, 4), tmp_path / "late", model, installation)
    said: list[str] = []
    assert ended((1_000_000, 1), tmp_path / "epochs", model, installation, said) == 3, "its epochs end it"
    assert said == ["NeMo-RL stopped after step 3 of 1000000: its rows were read 1 times (max_num_epochs)"]


@pytest.mark.parametrize(
    ("runner", "program", "said"),
    [
        ("python", "import zmk", "NeMo-RL's environment lacks the module 'zmk'"),
        ("python", "raise SystemExit('no such key')", "NeMo-RL refuses this configuration"),
        ("uv", "raise SystemExit('error: Request failed after 3 retries')", "uv could not make NeMo-RL's environment"),
        ("uv", "raise ValueError('no such key')", "NeMo-RL refuses this configuration"),
    ],
)
def test_an_environment_that_is_at_fault_is_told_from_a_config_that_is(
    installation: Installation, tmp_path: Path, runner: str, program: str, said: str
) -> None:
    started = replace(installation, runner=runner)
    with pytest.raises(UserError) as raised:
        run_logged(started, [sys.executable, "-c", program], tmp_path / "log", "NeMo-RL refuses this configuration")
    assert raised.value.message.startswith(said)
    remedy, makes = str(raised.value.remedy), f"nemotron engine install nemo_rl --from {installation.checkout}"
    assert (makes in remedy) == ("environment" in said)
    assert ("engine.runner=python" in remedy) == (runner == "uv" and "environment" in said)


def test_a_runs_own_checkpoints_go_before_another_runs(tmp_path: Path) -> None:
    earlier = checkpoint(tmp_path / "earlier" / "step_40", "model")
    own = tmp_path / "own"
    own.mkdir()
    assert adopt(str(earlier), own) == 40
    assert (own / "step_40" / "training_info.json").is_file()
    (own / "step_42").mkdir()
    assert adopt(str(checkpoint(tmp_path / "step_50", "model")), own) is None


def test_a_signal_ends_the_driver(installation: Installation, tmp_path: Path) -> None:
    run = Run(tmp_path, "test")
    program = "import os, time; open('pid', 'w').write(str(os.getpid())); time.sleep(600)"

    def stop_when_it_runs() -> None:
        while not (installation.checkout / "pid").exists():
            time.sleep(0.05)
        run.stop_requested = True

    threading.Thread(target=stop_when_it_runs, daemon=True).start()
    run_driver(installation, run, [sys.executable, "-c", program], tmp_path / "log", lambda: None)
    pid = int((installation.checkout / "pid").read_text())
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_a_driver_is_no_rank_of_torchrun_and_finds_the_plans(
    installation: Installation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("PYTHONPATH", "/mine")
    environment = installation.environment()
    assert "RANK" not in environment
    assert environment["PYTHONPATH"] == f"{installation.checkout}{os.pathsep}/mine"


def test_uv_runs_what_the_container_documents() -> None:
    command = Installation(Path("/checkout"), {}, "uv").command("convert.py", "--config", "c.yaml", extra="mcore")
    assert command == ["uv", "run", "--extra", "mcore", "python", "convert.py", "--config", "c.yaml"]


TYPES: list[tuple[list[str], Any, bool]] = [
    (["int"], 3, True),
    (["int"], True, False),
    (["int"], 3.0, False),
    (["float"], 3, True),
    (["float", "null"], None, True),
    (["bool"], "true", False),
    (["any"], object(), True),
    (["list"], [1], True),
]


@pytest.mark.parametrize(("accepted", "value", "fits"), TYPES)
def test_a_type_is_checked_strictly(accepted: list[str], value: Any, fits: bool) -> None:
    assert (type_fault({"types": accepted}, value) is None) == fits


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (
            {"policy": {"precison": "bfloat16"}},
            "no such key (NeMo-RL v0.7.0)\n  did you mean 'precision'?",
        ),
        ({"policy": {"optimizer": {"lrr": 1.0}}, "env": {"anything": {"goes": 1}}}, "did you mean 'lr'?"),
        ({"grpo": {"max_rolout_turns": 2}}, "mine.yaml:8: engine.overrides.grpo.max_rolout_turns: "),
        ({"policy": {"generation_batch_size": "many"}}, "generation_batch_size: must be int, not str ('many')"),
        ({"policy": {"precision": "int8"}}, "precision: must be one of bfloat16, float32, not 'int8'"),
        ({"grpo": {"unread": 8}}, "leave it out: NeMo-RL's own file sets it"),
        ({"grpo": {"unread": 4, "max_rollout_turns": "${policy.x}"}, "loss_fn": {"ratio_clip_c": 3}}, None),
    ],
)
def test_keys_of_overrides_are_those_that_nemo_rl_declares_or_reads(
    tmp_path: Path, overrides: dict[str, Any], said: str | None
) -> None:
    checkout = fake_checkout(tmp_path / "nemo-rl")
    (checkout / "nemo_rl" / "loss.py").write_text("loss_fn = ratio_clip_c = None\n")
    base = {"grpo": {"unread": 4}, "loss_fn": {"ratio_clip_c": None}}
    engine: Any = SimpleNamespace(overrides=overrides, version="v0.7.0")
    origins = {"engine.overrides.grpo.max_rolout_turns": "mine.yaml:8"}
    with pytest.raises(UserError) if said else nullcontext() as raised:
        require_known(Installation(checkout, base, "python"), engine, "grpo", origins, tmp_path / "log")
    assert not said or said in str(raised.value)


def test_a_variable_of_the_base_must_be_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PERSISTENT_CACHE", raising=False)
    base = {"env": {"uv_venv_dir": "${oc.env:PERSISTENT_CACHE}/venvs"}}
    assert with_variables(base, complete=False)["env"]["uv_venv_dir"] == "<PERSISTENT_CACHE>/venvs"
    with pytest.raises(UserError, match="environment variable PERSISTENT_CACHE"):
        with_variables(base, complete=True)


def test_an_interpolation_that_leads_nowhere_is_told() -> None:
    with pytest.raises(UserError, match="NeMo-RL's config: a"):
        resolved(OmegaConf.create({"a": "${b.c}"}))


@pytest.mark.parametrize(
    "text", ["${mul:200000000,a}", "${mul:a,2}", "${mul:1000000000000,1000000000000}", "${max:a,b}"]
)
def test_what_configs_compute_with_are_numbers(text: str) -> None:
    with pytest.raises(UserError, match="NeMo-RL's config: x"):
        resolved(OmegaConf.create({"x": text}))
    assert resolved(OmegaConf.create({"x": "${mul:${max:2,3},2}", "y": "${div:1,2}"})) == {"x": 6, "y": 0.5}


def test_an_override_may_not_repeat_a_section_of_ours() -> None:
    with pytest.raises(UserError, match=r"engine\.overrides\.grpo\.seed"):
        refuse_repeated({"grpo": {"seed": 3}}, {"grpo.seed": 1})
    with pytest.raises(UserError, match=r"engine\.overrides\.data\.train\.data_path"):
        refuse_repeated({"data": {"train": {"data_path": "x"}}}, {"data.train": {}})


def test_metrics_are_taken_from_all_tensorboard_files_and_counted_from_the_beginning(tmp_path: Path) -> None:
    def written(folder: str, scalars: dict[str, dict[int, float]]) -> Path:
        place = tmp_path / folder / "tensorboard"
        writer = EventFileWriter(str(place))
        for tag, values in scalars.items():
            for step, value in values.items():
                writer.add_event(Event(step=step, summary=Summary(value=[Summary.Value(tag=tag, simple_value=value)])))
        writer.close()
        return next(place.iterdir())

    tokens, times = "train/global_valid_toks", "timing/train/total_step_time"
    first = {tokens: {1: 100.0, 2: 300.0}, times: {1: 10.0, 2: 20.0}, "train/kl_penalty": {1: 0.5, 2: 9.0}}
    written("exp_001", first | {"train/unknown": {1: 1.0}})
    second = written(
        "exp_002",
        {tokens: {2: 200.0}, times: {2: 5.0}, "train/loss": {2: math.inf}, "ray/node.0.gpu.3.util": {60: 93.0}},
    )
    assert write_metrics(tmp_path, tmp_path / "metrics.jsonl") == [(2, "loss", math.inf)]
    found = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert found == [
        {"step": 1, "kl": 0.5, "step_seconds": 10.0, "tokens": 100.0, "tokens_per_second": 10.0, "seconds": 10.0},
        {"step": 2, "kl": 9.0, "step_seconds": 5.0, "tokens": 300.0, "tokens_per_second": 40.0, "seconds": 15.0},
    ]
    assert ("gpu_utilization", 60, 93.0) in read_scalars(second)
