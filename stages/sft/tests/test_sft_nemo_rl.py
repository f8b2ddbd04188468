"""Fine-tuning with NeMo-RL: the recipe for Super 49B, conversations as data, and what is refused."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from nemo_rl_support import fake_checkout
from omegaconf import OmegaConf

from nemotron_data.tokenizers.folder import provide_tokenizer
from nemotron_engines.modeling.build import save_random_model
from nemotron_engines.nemo_rl import installation, needs
from nemotron_engines.nemo_rl.dialect import sft_file
from nemotron_engines.nemo_rl.needs import check_config
from nemotron_engines.nemo_rl.translate import resolved, with_variables
from nemotron_engines.nemo_rl.versions import digest_of, load_base, load_bases
from nemotron_engines.overrides import at, has, leaves
from nemotron_shared.config.compose import compose
from nemotron_shared.config.references import resolve
from nemotron_shared.config.schema import ModelSection
from nemotron_shared.config.validate import validate
from nemotron_shared.engine.engine import problems_of, refuse
from nemotron_shared.machine.machine import Machine
from nemotron_shared.system.errors import UserError
from stages.sft.engines import nemo_rl
from stages.sft.schema import SFTConfig
from stages.sft.train import main

CONFIG = Path(nemo_rl.__file__).parents[2] / "config"
CHATS = ("engine=nemo_rl", "run.data=null", "engine.train_chats=t.jsonl")
MEANT = {
    "policy.model_name",
    "policy.tokenizer.name",
    "policy.tokenizer.chat_template",  # the model's own instead of one with "Question:" and "Answer:"
    "checkpointing.checkpoint_dir",
    "checkpointing.metric_name",  # the newest checkpoints are kept, not the best
    "checkpointing.save_period",  # upstream would save after the end
    "checkpointing.model_save_format",
    "checkpointing.save_consolidated",
    "logger.log_dir",
    "logger.monitor_gpus",  # so that `nemotron check` can say whether they work
    "logger.tensorboard_enabled",
    "logger.wandb_enabled",
}


def check(config: SFTConfig) -> None:
    """What the engine refuses before any work."""
    refuse(problems_of(config, {}, Machine.here(Path()), {}))


def config_of(recipe: str, *overrides: str) -> SFTConfig:
    composed = compose(CONFIG, recipe, list(overrides))
    return validate(SFTConfig, resolve(composed.tree, lambda role, field: "x"), composed.origins)


def built(recipe: str, *overrides: str) -> dict[str, Any]:
    config = config_of(recipe, *overrides)
    check(config)
    return check_config(config, "sft", nemo_rl.places_without_run(config))


def test_the_recipe_of_super_49b_differs_from_nemo_rls_own_only_where_it_means_to() -> None:
    config = config_of("super49b")
    base = load_bases(config.engine.version)[config.engine.base].values
    theirs = resolved(OmegaConf.create(with_variables(base, complete=False)))
    ours = built("super49b", "engine.allow_experimental=true")
    keys = set(dict(leaves(ours))) | set(dict(leaves(theirs)))
    assert {key for key in keys if has(ours, key) != has(theirs, key) or at(ours, key) != at(theirs, key)} == MEANT


def test_it_trains_whole_batches_on_64_gpus_with_the_plan_of_its_layers() -> None:
    values = built("super49b", "engine.allow_experimental=true")
    assert values["cluster"]["num_nodes"] * values["cluster"]["gpus_per_node"] == 64
    assert values["policy"]["train_global_batch_size"] == 128
    plan = values["policy"]["dtensor_cfg"]["custom_parallel_plan"]
    assert plan == "examples.custom_parallel.llama_nemotron_super_49b_custom_plan.custom_parallel_plan"
    assert values["policy"]["scheduler"][1]["kwargs"] == {"T_max": 40, "eta_min": 2.0e-6}


def test_conversations_of_the_user_take_the_place_of_the_data_set() -> None:
    data = built("tiny", *CHATS, "engine.valid_chats=v.jsonl")["data"]
    assert data["train"] == {"dataset_name": "openai_format", "data_path": "<train.jsonl>"}
    assert data["validation"] == {"dataset_name": "openai_format", "data_path": "<val.jsonl>"}
    alone = built("tiny", *CHATS)
    assert alone["data"]["validation"] is None
    assert alone["sft"]["val_period"] == 0


def test_cpu_offload_is_one_override() -> None:
    offload = "++engine.overrides.policy.dtensor_cfg.cpu_offload=true"
    assert built("super49b", "engine.allow_experimental=true", offload)["policy"]["dtensor_cfg"]["cpu_offload"] is True


def test_a_run_that_saves_only_after_its_last_step_is_accepted_and_said() -> None:
    assert built("super49b", "engine.allow_experimental=true", "checkpoint.save_interval=500")
    said = sft_file({"defaults": "sft.yaml", "sft": {"max_num_steps": 50}, "checkpointing": {"save_period": 500}}, "m")
    assert [*said.notes] == [
        "a checkpoint every 500 steps in 50: only one is saved, at the end; set checkpoint.save_interval=10 for more"
    ]
    assert not sft_file({"defaults": "sft.yaml", "checkpointing": {"save_period": 5}}, "m").notes


WRONG = [
    ("super49b", (), "#1571"),
    ("super49b", ("engine.allow_experimental=true", "engine.num_nodes=3"), "24 training GPUs are not a multiple of 32"),
    ("super49b", ("engine.allow_experimental=true", "train.global_batch_size=127"), "not a multiple of 1 x 2"),
    ("tiny", ("engine=nemo_rl",), "NeMo-RL reads no packed rows"),
    ("tiny", ("engine=nemo_rl", "run.data=null", "engine.valid_chats=v.jsonl"), "without engine.train_chats"),
    ("tiny", (*CHATS, "engine.version=nano-v3"), "nano-v3 is for reinforcement only"),
]


@pytest.mark.parametrize(("recipe", "overrides", "message"), WRONG)
def test_what_cannot_run_is_refused_before_any_gpu(recipe: str, overrides: tuple[str, ...], message: str) -> None:
    with pytest.raises(UserError, match=message):
        check(config_of(recipe, *overrides))


BASE = "examples/configs/sft.yaml"


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A pretended NeMo-RL in an empty folder with conversations and a store, and GPUs enough."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NEMOTRON_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(needs, "_gpus", lambda *_: ())
    made = fake_checkout(tmp_path / "nemo-rl")
    base = load_bases("v0.7.0")[BASE]
    (made / BASE).write_text(yaml.safe_dump(base.values, sort_keys=False))
    known = {BASE: replace(base, digest=digest_of(load_base(made, BASE)))}
    monkeypatch.setattr(installation, "load_bases", lambda name: known)
    turns = [{"role": "user", "content": "What is 3+4?"}, {"role": "assistant", "content": "3+4 is 7."}]
    (tmp_path / "t.jsonl").write_text((json.dumps({"messages": turns}) + "\n") * 128)
    return made


@pytest.mark.parametrize(
    ("changed", "said"),
    [({"use_bias": True}, "tensors missing"), ({"moe_latent_size": 16}, "of another shape"),
     ({"eos_token_id": 600}, "eos_token_id is 600, outside the vocabulary")],
)  # fmt: skip
def test_a_model_that_is_not_its_config_is_refused_before_nemo_rl_starts(
    checkout: Path, capsys: pytest.CaptureFixture[str], changed: dict[str, Any], said: str
) -> None:
    model = checkout.parent / "model"
    provide_tokenizer("tiny", model)
    save_random_model(ModelSection(architecture="super3_tiny", overrides={}), model, 7, model)
    file = model / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changed))
    engine = (f"engine.checkout={checkout}", "engine.runner=python", "run.model=./model")
    assert main(["-c", "tiny", *CHATS, *engine]) == 2
    told = capsys.readouterr().err
    assert said in told and "Traceback" not in told
    assert not [*(checkout.parent / "home" / "runs").glob("*/nemo_rl.*")]
