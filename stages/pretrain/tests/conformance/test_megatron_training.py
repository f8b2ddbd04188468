"""Engine `megatron_bridge` trains the tiny hybrid on a CPU through Bridge's own loop, as a user would run it.

Each run is a process: faking `torch.cuda` changes it, and a stop needs one to stop. Most are copies of a process that
has imported Bridge; those of two processes, or of another engine, import everything themselves.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from support import Forked, run_forked

pytestmark = [pytest.mark.megatron, pytest.mark.slow]
REPOSITORY = Path(__file__).resolve().parents[4]
PATIENCE = 600
STEPS = 6
SMALL = [
    "data_prep.synthetic_documents=600", f"train.train_iters={STEPS}", "train.eval_interval=4", "train.eval_rows=8",
    "checkpoint.save_interval=4", "logger.log_interval=1", "run.seed=7",
]  # fmt: skip


def command(stage: str, *settings: str, processes: int = 1) -> list[str]:
    script = str(REPOSITORY / "stages" / stage / "train.py")
    start = ["-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={processes}"] if processes > 1 else []
    return [sys.executable, *start, script, "-c", "tiny", *settings]


def environment(home: Path) -> dict[str, str]:
    return {**os.environ, "NEMOTRON_HOME": str(home), "OMP_NUM_THREADS": "1"}


def run(home: Path, line: list[str]) -> "subprocess.CompletedProcess[str]":
    if "torch.distributed.run" not in line and "engine=megatron_bridge" in line:
        return run_forked(line, home, environment(home))
    return subprocess.run(line, env=environment(home), capture_output=True, text=True, timeout=PATIENCE)


def train(home: Path, *settings: str, processes: int = 1) -> Path:
    """The folder of the published model."""
    done = run(home, command("pretrain", "engine=megatron_bridge", *SMALL, *settings, "--json", processes=processes))
    assert done.returncode == 0, done.stderr[-3000:]
    return Path(json.loads(done.stdout)["path"])


def interrupt(home: Path, after: int, number: signal.Signals) -> tuple[int, str]:
    """Exit code and messages of a run that gets a signal once it has shown a step."""
    line = command("pretrain", "engine=megatron_bridge", *SMALL)
    reading, writing = os.pipe()
    with os.fdopen(writing, "w") as said:
        process = Forked(line, home, environment(home), said, said)
    seen = ""
    with os.fdopen(reading) as lines:
        for one in lines:
            seen += one
            if f"] step {after}/{STEPS}" in one:  # not "at work on step", which may still write a checkpoint
                process.send_signal(number)
    return process.wait(), seen


def figures(model: Path) -> list[dict[str, float]]:
    """metrics.jsonl without the figures that are times, or memory."""
    entries = [json.loads(line) for line in (model / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in entry.items() if "second" not in k and k != "memory_gb"} for entry in entries]


def weights(model: Path) -> dict[str, torch.Tensor]:
    return load_file(model / "model.safetensors")


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A home with data and a model that was trained without a stop."""
    home = tmp_path_factory.mktemp("whole")
    return home, train(home, "engine.keep_checkpoint=true")


@pytest.fixture
def prepared(finished: tuple[Path, Path], tmp_path: Path) -> Path:
    """A home with the same data and no model."""
    data = Path("artifacts") / "super3-pretrain-data"
    shutil.copytree(finished[0] / data, tmp_path / data)
    return tmp_path


def test_the_loss_falls_and_the_checkpoint_is_kept(finished: tuple[Path, Path]) -> None:
    losses = [entry["loss"] for entry in figures(finished[1]) if "loss" in entry]
    assert len(losses) == STEPS
    assert losses[-1] < losses[0] - 0.5
    assert [entry["step"] for entry in figures(finished[1]) if "valid_loss" in entry] == [4, STEPS]
    assert (finished[1] / "megatron" / f"iter_{STEPS:07d}" / ".metadata").is_file()
    assert (finished[1] / "megatron" / "latest_checkpointed_iteration.txt").read_text().strip() == str(STEPS)


def test_the_model_is_one_that_transformers_loads(finished: tuple[Path, Path], tmp_path: Path) -> None:
    from types import SimpleNamespace

    from nemotron_engines.modeling.build import load_model, random_like, save_model

    engine = SimpleNamespace(attn_implementation="sdpa", allow_reference_kernels=False)
    model = load_model(finished[1], engine)
    save_model(random_like(finished[1], 1, engine), finished[1], tmp_path)
    assert weights(tmp_path).keys() == weights(finished[1]).keys()
    assert model.config.time_step_min == 0
    assert (finished[1] / "chat_template.jinja").is_file()


def test_the_passport_of_the_export_finds_nothing(
    finished: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for member in ("app", "serving"):  # not in Megatron's environment
        monkeypatch.syspath_prepend(REPOSITORY / "shared" / member / "src")
    from nemotron_serving.passport.alone import by_itself

    exported = finished[1]
    assert by_itself(exported).findings == by_itself(exported, exported).findings == []
    whole = weights(exported)
    lost = next(name for name in whole if name.endswith("experts.1.up_proj.weight"))
    (tmp_path / "config.json").write_bytes((exported / "config.json").read_bytes())
    save_file({k: v for k, v in whole.items() if k != lost}, tmp_path / "model.safetensors", metadata={"format": "pt"})
    assert lost in [finding.key for finding in by_itself(tmp_path).findings]


def test_stopped_and_killed_it_goes_on_with_the_same_losses(finished: tuple[Path, Path], prepared: Path) -> None:
    code, said = interrupt(prepared, 2, signal.SIGTERM)
    assert code == 130, said[-3000:]
    assert "stopped after step 3" in said
    code, said = interrupt(prepared, 5, signal.SIGKILL)
    assert code == -signal.SIGKILL, said[-3000:]
    assert "continuing from step 3" in said
    model = train(prepared, "engine.keep_checkpoint=false")
    assert figures(model) == figures(finished[1])
    assert (model / "model.safetensors").read_bytes() == (finished[1] / "model.safetensors").read_bytes()


def test_two_processes_train_like_one(finished: tuple[Path, Path], prepared: Path) -> None:
    """Validation is left out: Bridge's loader draws its rows by process."""
    alone, together = (
        [entry for entry in figures(model) if "loss" in entry] for model in (finished[1], train(prepared, processes=2))
    )
    for one, two in zip(alone, together, strict=True):
        assert two == pytest.approx(one, rel=1e-5)


def test_training_starts_from_a_model(finished: tuple[Path, Path], prepared: Path) -> None:
    """With next to no learning rate, every weight comes out as it went in, also of a folder that a newer version of
    transformers wrote, with other names of layers."""
    newer = shutil.copytree(finished[1], prepared / "newer", ignore=shutil.ignore_patterns("m[ae][ng]*"))
    config = json.loads((newer / "config.json").read_text())
    names = {"mamba": "linear_attention", "attention": "full_attention"}
    config["layers_block_type"] = [names.get(kind, kind) for kind in config["layers_block_type"]]
    (newer / "config.json").write_text(json.dumps(config))
    still = ["train.train_iters=1", "train.eval_interval=1", "optimizer.lr=1e-30", "optimizer.min_lr=0"]
    model = train(prepared, f"run.model={newer}", *still)
    before, after = weights(finished[1]), weights(model)
    changed = {name for name in before if not before[name].allclose(after[name], rtol=0, atol=1e-20)}
    assert all(name.endswith("e_score_correction_bias") for name in changed)  # a step corrects the routing
    losses = [entry["loss"] for entry in figures(finished[1]) if "loss" in entry]
    assert figures(model)[0]["loss"] < losses[0] - 0.5


def test_a_kept_checkpoint_gives_the_weights_of_the_exported_model(finished: tuple[Path, Path], prepared: Path) -> None:
    """The artifact with the checkpoint has spoilt weights beside it, so that nothing else can give the same loss."""
    exported, kept = prepared / "exported", prepared / "kept"
    shutil.copytree(finished[1], exported, ignore=shutil.ignore_patterns("megatron"))
    shutil.copytree(finished[1], kept)
    save_file({name: torch.zeros_like(one) for name, one in weights(kept).items()}, kept / "model.safetensors")
    short = ("train.train_iters=2", "train.eval_interval=2", "engine.keep_checkpoint=false")
    from_export, from_kept = (figures(train(prepared, f"run.model={model}", *short)) for model in (exported, kept))
    assert from_kept == from_export
    assert [entry["step"] for entry in from_kept if "loss" in entry] == [1, 2]


@pytest.fixture(scope="module")
def exported(finished: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model, by `nemotron export --for megatron`."""
    folder = tmp_path_factory.mktemp("exported") / "folder"
    assert nemotron("export", str(finished[1]), str(folder), "--for", "megatron", "--home", str(finished[0])) == 0
    return folder


def nemotron(*words: str) -> int:
    with pytest.MonkeyPatch.context() as patched:
        for member in ("app", "serving"):  # not in Megatron's environment
            patched.syspath_prepend(REPOSITORY / "shared" / member / "src")
        from nemotron_app.main import main

        return main(list(words))


def test_an_exported_checkpoint_is_the_model_and_names_nothing_of_ours(
    exported: Path, finished: tuple[Path, Path]
) -> None:
    told = json.loads((exported / "passport.json").read_text())
    count = len(weights(finished[1]))
    assert told["same"] and ["megatron: tensors", f"{count} of {count} compared"] in told["parts"][0]["facts"]
    files = [file for file in (exported / "megatron").rglob("*") if file.is_file()]
    assert {"run_config.yaml", ".metadata", "latest_train_state.pt"} <= {file.name for file in files}
    for file in files:
        content = file.read_bytes()
        assert b"nemotron_engines" not in content and str(exported.parent).encode() not in content, file


def test_an_exported_checkpoint_has_the_names_that_transformer_engine_asks_for(exported: Path) -> None:
    """As the layers of Transformer Engine 2.20.2 asked for them in megatron-core 0.19.2, whose compiled part was faked;
    they then held the same bits. What is missing would end their loading."""
    from torch.distributed.checkpoint import FileSystemReader

    there = FileSystemReader(exported / "megatron" / "iter_0000000").read_metadata().state_dict_metadata
    names = {re.sub(r"layers\.\d+|/shard_.*", "", name) for name in there}
    mamba = {f"in_proj.weight.{part}" for part in ("z", "x", "B", "C", "dt")}
    mamba |= {f"conv1d.{kind}.{part}" for kind in ("weight", "bias") for part in ("x", "B", "C")}
    mamba |= {"A_log", "D", "dt_bias", "norm.weight", "in_proj.layer_norm_weight"}
    linear = {"mixer.in_proj", "mixer.out_proj", "self_attention.linear_qkv", "self_attention.linear_proj"}
    linear |= {f"mlp.{place}.linear_fc{number}" for place in ("experts.experts", "shared_experts") for number in (1, 2)}
    linear |= {"mlp.fc1_latent_proj", "mlp.fc2_latent_proj", "pre_mlp_layernorm"}
    layers = {f"{name}.{kind}" for name in linear for kind in ("weight", "_extra_state")} - {"mixer.in_proj.weight"}
    layers |= {f"mixer.{name}" for name in mamba} | {"self_attention.linear_qkv.layer_norm_weight"}
    layers |= {"mlp.router.weight", "mlp.router.expert_bias"}
    ends = {f"{name}.{kind}" for name in ("decoder.final_norm", "output_layer") for kind in ("weight", "_extra_state")}
    assert names == {f"decoder..{name}" for name in layers} | ends | {
        "embedding.word_embeddings.weight",
        "common_state",
    }


def test_a_changed_tensor_of_an_exported_checkpoint_is_named(
    exported: Path, finished: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from nemotron_engines.megatron_bridge import export_checkpoint

    whole, name = weights(finished[1]), "backbone.layers.4.mixer.experts.1.up_proj.weight"
    changed = shutil.copytree(exported, tmp_path / "changed", ignore=shutil.ignore_patterns("megatron"))
    save_file(whole | {name: whole[name] * 1.5}, changed / "model.safetensors", metadata={"format": "pt"})
    line = [sys.executable, "-m", export_checkpoint.__name__, str(changed), str(changed / "megatron")]
    subprocess.run(line, check=True, capture_output=True, timeout=PATIENCE)
    save_file(whole, changed / "model.safetensors", metadata={"format": "pt"})
    words = ["verify", str(changed), "--against", str(finished[1]), "--no-run", "--home", str(finished[0]), "--json"]
    capsys.readouterr()
    assert nemotron(*words) == 1
    found = [finding for part in json.loads(capsys.readouterr().out)["parts"] for finding in part["findings"]]
    assert found == [{"where": f"megatron: {name}", "what": "is 1.5 times as large"}]


def test_training_from_an_export_and_from_its_checkpoint_gives_the_same_figures(exported: Path, prepared: Path) -> None:
    """The export with the checkpoint has spoilt weights beside it."""
    folder = shutil.copytree(exported, prepared / "folder", ignore=shutil.ignore_patterns("megatron"))
    spoilt = shutil.copytree(exported, prepared / "spoilt")
    save_file({name: torch.zeros_like(one) for name, one in weights(folder).items()}, spoilt / "model.safetensors")
    short = ("train.train_iters=2", "train.eval_interval=2")
    from_folder, from_checkpoint = (
        figures(train(prepared, f"run.model={model}", *short)) for model in (folder, spoilt)
    )
    assert from_checkpoint == from_folder
    assert [entry["step"] for entry in from_folder if "loss" in entry] == [1, 2]


def test_a_kept_checkpoint_is_imported(finished: tuple[Path, Path], tmp_path: Path) -> None:
    kept = finished[1] / "megatron"
    words = ["model", "import", f"megatron:{kept}", "--as", "imported", "--home", str(tmp_path)]
    assert nemotron(*words) == 0
    back = weights(tmp_path / "artifacts" / "imported" / "v1")
    assert back.keys() == weights(finished[1]).keys()
    assert all(torch.equal(one, back[name]) for name, one in weights(finished[1]).items())


def test_the_next_stage_starts_from_the_result(finished: tuple[Path, Path]) -> None:
    settings = ["train.train_iters=2", "train.eval_interval=2", f"run.model={finished[1]}"]
    done = run(finished[0], command("sft", *settings, "data_prep.synthetic_chats=300", "--json"))
    assert done.returncode == 0, done.stderr[-3000:]
