"""A whole run of the engine with a pretended NeMo-RL: config, driver, figures, resume, result."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from nemo_rl_support import BASE, fake_checkout

from nemotron_data.tokenizers.folder import provide_tokenizer
from nemotron_engines.modeling.build import save_random_model
from nemotron_engines.nemo_rl import installation, needs
from nemotron_engines.nemo_rl.versions import digest_of, load_base, load_bases
from nemotron_shared.config.schema import ModelSection
from stages.rl.engines.nemo_rl.rows import row_fault
from stages.rl.train import main

SMALL = ("train.train_iters=6", "checkpoint.save_interval=2", "train.eval_interval=2")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty store, a model folder beside it, and GPUs enough."""
    monkeypatch.setenv("NEMOTRON_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("NO_VCS_VERSION", "1")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(needs, "_gpus", lambda *_: ())
    provide_tokenizer("tiny", tmp_path / "model")
    section = ModelSection(architecture="super3_tiny", overrides={})
    save_random_model(section, tmp_path / "model", 7, tmp_path / "model")
    digest = digest_of(load_base(fake_checkout(tmp_path / "nemo-rl"), BASE))
    monkeypatch.setattr(installation, "load_bases", lambda name: {BASE: replace(load_bases(name)[BASE], digest=digest)})
    return tmp_path / "home"


def run(home: Path, *overrides: str) -> int:
    engine = ["engine=nemo_rl", f"engine.checkout={home.parent / 'nemo-rl'}", "engine.runner=python"]
    model = f"run.model={home.parent / 'model'}"
    return main(["-c", "tiny", *engine, model, "data_prep.synthetic_problems=60", *SMALL, *overrides])


def folder(home: Path) -> Path:
    (found,) = (home / "runs").glob("super3-rl-model-*")
    return found


def model(home: Path, version: int = 1) -> Path:
    return home / "artifacts" / "super3-rl-model" / f"v{version}"


@pytest.mark.slow
def test_the_last_checkpoint_becomes_a_hugging_face_folder(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEMOTRON_MUST_SAVE_BY", "00:07:55:00")  # a job's launcher knows its time limit
    assert run(home) == 0
    names = {path.name for path in model(home).iterdir()}
    assert {"model.safetensors", "config.json", "tokenizer.json", "metrics.jsonl"} <= names
    assert "chat_template.jinja" in names or "chat_template" in (model(home) / "tokenizer_config.json").read_text()
    figures = [json.loads(line) for line in (model(home) / "metrics.jsonl").read_text().splitlines()]
    assert [figure["step"] for figure in figures] == [1, 2, 3, 4, 5, 6]
    assert figures[-1]["reward"] == 1.0
    written = yaml.safe_load((folder(home) / "nemo_rl.yaml").read_text())
    assert written["policy"]["train_global_batch_size"] == 128
    assert written["checkpointing"]["checkpoint_must_save_by"] == "00:07:55:00"
    monkeypatch.delenv("NEMOTRON_MUST_SAVE_BY")
    assert run(home) == 0 and not model(home, 2).exists(), "when to save is no part of what is made"
    assert Path(written["data"]["train"]["data_path"]).is_file()


@pytest.mark.slow
def test_a_failed_driver_is_reported_and_the_next_run_goes_on(
    home: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FAKE_FAILS_AT", "5")
    assert run(home) == 2
    said = capfd.readouterr().err
    assert "NeMo-RL ended with exit code 1" in said
    assert "out of memory, says the driver" in said
    monkeypatch.delenv("FAKE_FAILS_AT")
    log = folder(home) / "nemo_rl.log"
    assert run(home) == 0
    assert "continuing from step 4" in capfd.readouterr().err
    assert "driver starts after step 4" in log.read_text()
    steps = [json.loads(line)["step"] for line in (model(home) / "metrics.jsonl").read_text().splitlines()]
    assert steps == [1, 2, 3, 4, 5, 6]


@pytest.mark.slow
def test_a_run_continues_from_the_checkpoint_of_another(home: Path, capfd: pytest.CaptureFixture[str]) -> None:
    step = home.parent / "earlier" / "step_4"
    (step / "policy" / "weights").mkdir(parents=True)
    (step / "training_info.json").write_text("{}")
    assert run(home, f"engine.load_path={step}") == 0
    assert f"continuing from step 4 of {step}" in capfd.readouterr().err
    assert [json.loads(line)["step"] for line in (model(home) / "metrics.jsonl").read_text().splitlines()] == [5, 6]
    assert step.is_dir()


def test_a_load_path_that_is_no_finished_checkpoint_is_refused_before_gpus_are_asked_for(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (home.parent / "step_4").mkdir()
    for name, said in (("step_4", "is not a finished NeMo-RL checkpoint"), ("step_5", "folder ")):
        assert run(home, f"engine.load_path={home.parent / name}", "--dry-run") == 1
        told = capsys.readouterr().out.partition("# problems")[2]
        assert "command line: engine.load_path: " in told and said in told
    assert run(home, f"engine.load_path={home.parent / 'step_4'}", "engine.stop_before_training=true") == 2
    assert "is not a finished NeMo-RL checkpoint" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"bad": 1}\n', ":1: no question or no expected_answer"),
        ('{"question": "1+1?", "expected_answer": "2"}\nno JSON\n', ":2: "),
        ("", ": no rows"),
    ],
)
def test_own_rows_are_looked_at_before_gpus_are_asked_for(
    home: Path, capsys: pytest.CaptureFixture[str], text: str, said: str
) -> None:
    file = home.parent / "mine.jsonl"
    file.write_text(text)
    assert run(home, "run.data=null", f"engine.train_rows={file}", "--dry-run") == 1
    told = capsys.readouterr().out.partition("# problems")[2]
    assert f"command line: engine.train_rows: {file}{said}" in told
    assert "use rows that environment 'math' can read: engine.train_rows=FILE" in told


def test_without_gpus_there_is_one_error_that_says_how_many(
    home: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.undo()
    monkeypatch.setenv("NEMOTRON_HOME", str(home))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert run(home, "engine.num_nodes=2", "engine.gpus_per_node=8") == 2
    said = capfd.readouterr().err
    assert "NeMo-RL needs 16 GPUs here (2 nodes x 8: engine.num_nodes, engine.gpus_per_node)" in said
    assert "has 0" in said


def test_another_version_is_refused_with_the_way_to_the_right_one(
    home: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    info = home.parent / "nemo-rl" / "nemo_rl" / "package_info.py"
    info.write_text(info.read_text().replace("MINOR = 7", "MINOR = 8"))
    assert run(home) == 2
    said = capfd.readouterr().err
    assert "is version 0.8.0, but this recipe is written for NeMo-RL v0.7.0" in said
    assert "git -C nemo-rl checkout --recurse-submodules 81aa43dda4765b0429cf31dab44441e4e4383911" in said


def test_a_changed_base_config_is_refused(home: Path, capfd: pytest.CaptureFixture[str]) -> None:
    base = home.parent / "nemo-rl" / "examples" / "configs" / "grpo_math_1B.yaml"
    base.write_text(base.read_text().replace("val_period: 10", "val_period: 20"))
    assert run(home) == 2
    assert "is not the file of NeMo-RL v0.7.0" in capfd.readouterr().err


def test_no_checkout_at_all(home: Path, capfd: pytest.CaptureFixture[str]) -> None:
    shutil.rmtree(home.parent / "nemo-rl")
    assert run(home) == 2
    assert "is not a NeMo-RL checkout" in capfd.readouterr().err


GYM = {"responses_create_params": {"input": [{"role": "user", "content": "1+1?"}]}, "question": "1+1?"}
AGENT = {"type": "responses_api_agents", "name": "my_agent"}
ASKING = {"responses_create_params": {"input": "2+2?", "instructions": "Be brief."}}
ROWS = [
    ("math", GYM | {"expected_answer": "2"}, None),
    ("math", GYM, "no question or no expected_answer"),
    ("math", GYM | {"expected_answer": "2", "question": "2+2?"}, "more turns than the question"),
    ("math", ASKING | {"expected_answer": "2", "question": "2+2?"}, "the row has 'instructions'"),
    ("nemo_gym", GYM, "agent_ref without a name"),
    ("nemo_gym", GYM | {"agent_ref": {"type": "responses_api_agents", "name": "my_agent"}}, None),
    (
        "nemo_gym",
        GYM | {"agent_ref": {"type": "responses_api_agents", "name": "mcqa_simple_agent"}},
        "no verifier field",
    ),
]


@pytest.mark.parametrize(("environment", "row", "fault"), ROWS)
def test_a_row_that_the_environment_cannot_use_is_named(environment: str, row: dict, fault: str | None) -> None:
    found = row_fault(row, environment)
    assert found is None if fault is None else fault in str(found)


@pytest.mark.slow
def test_it_stops_where_what_is_sampled_is_not_what_is_trained(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FAKE_MISMATCH", "1.3")
    assert run(home, "grpo.sampling_mismatch_limit=1.1") == 2
    assert "token_mult_prob_error is 1.3, more than grpo.sampling_mismatch_limit=1.1" in capsys.readouterr().err
    assert run(home, "grpo.sampling_mismatch_limit=1.4") == 0, "it goes on, for the limit names no other result"
    written = yaml.safe_load((folder(home) / "nemo_rl.yaml").read_text())["loss_fn"]
    names = ("use_importance_sampling_correction", "truncated_importance_sampling_ratio")
    assert [written[name] for name in names] == [True, 2.0]
    assert written["truncated_importance_sampling_type"] == "tis"
