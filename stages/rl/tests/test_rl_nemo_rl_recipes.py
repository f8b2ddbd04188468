"""The recipes that run on NeMo-RL: they say what NeMo-RL's own configs say, and a slip in one is found."""

from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from nemotron_engines.nemo_rl.dialect import grpo_file
from nemotron_engines.nemo_rl.needs import check_config
from nemotron_engines.nemo_rl.translate import POLICY_SERVER, resolved, with_variables
from nemotron_engines.nemo_rl.versions import load_bases
from nemotron_engines.overrides import at, has, leaves
from nemotron_shared.config.compose import compose
from nemotron_shared.config.references import resolve
from nemotron_shared.config.validate import validate
from nemotron_shared.engine.engine import problems_of, refuse
from nemotron_shared.machine.machine import Machine
from nemotron_shared.system.errors import UserError
from stages.rl.engines import nemo_rl
from stages.rl.schema import RLConfig
from stages.rl.train import STEP

HERE = Machine.here(Path())
CONFIG = Path(nemo_rl.__file__).parents[2] / "config"
RECIPES = [
    "super3", "super3_rlvr", "super3_swe1", "super3_swe2", "super3_rlhf", "nano3", "super49b", "lightning35",
    "lightning35_dapo",
]  # fmt: skip
NANO_IMAGE = "nvcr.io/nvidia/nemo-rl:v0.4.0.nemotron_3_nano"
VERSION_KEYS = ("engine.version", "engine.container")
ALLOWED = "engine.allow_experimental=true"
OURS = {
    "policy.model_name",
    "policy.tokenizer.name",
    "checkpointing.checkpoint_dir",
    "logger.log_dir",
    "logger.tensorboard_enabled",
    "logger.wandb_enabled",
    "data.train.data_path",
    "data.validation.data_path",
    "data.train_jsonl_fpath",
    "data.validation_jsonl_fpath",
    "env.nemo_gym.swe_agents_train.responses_api_agents.swe_agents.dataset_path",
    "env.nemo_gym.swe_agents_val.responses_api_agents.swe_agents.dataset_path",
}
"""What a run of ours decides in every recipe: places, and where figures go."""
MEANT = {
    "super3_rlvr": {"checkpointing.metric_name"},  # upstream names a validation metric and never validates
    "nano3": {"policy.generation.vllm_cfg.async_engine"},  # upstream's false is refused by its own program
    # upstream's val:reward is no metric that GRPO logs; a checkpoint must hold a whole model to be published; a warmup
    # of 13 steps never reaches the peak in 10
    "super49b": {"checkpointing.metric_name", "checkpointing.save_consolidated", "policy.scheduler"},
    # a checkpoint must hold a whole model; a warmup of ours begins at a tenth of the rate
    "lightning35_dapo": {"checkpointing.save_consolidated", "policy.scheduler"},
}
MTP, TRAINED, LOSS = "policy.megatron_cfg.mtp", "policy.dtensor_cfg", "loss_fn"
BACKEND = f"{TRAINED}.automodel_kwargs.backend"
PUBLISHED: dict[str, dict[str, Any]] = {
    # NVIDIA-NeMo/Nemotron at e27b37133, lightning35/stage2_rl/config/default.yaml
    "lightning35": {
        "grpo.num_prompts_per_step": 512,
        "grpo.overlong_filtering": False,
        f"{LOSS}.truncated_importance_sampling_ratio": 5,
        f"{LOSS}.truncated_importance_sampling_ratio_min": 0.2,
        f"{LOSS}.truncated_importance_sampling_type": "tis",
        f"{LOSS}.use_importance_sampling_correction": True,
        "policy.generation.max_new_tokens": 73728,
        "policy.generation.vllm_cfg.max_model_len": 73728,
        "policy.make_sequence_length_divisible_by": 32,
        "policy.max_total_sequence_length": 73728,
        "policy.sequence_packing.logprob_mb_tokens": 73728,
        "policy.sequence_packing.train_mb_tokens": 73728,
        "policy.train_global_batch_size": 8192,
        "policy.megatron_cfg.tensor_model_parallel_size": 4,
        "policy.megatron_cfg.pipeline_model_parallel_size": 1,
        "policy.megatron_cfg.expert_model_parallel_size": 16,
        "policy.megatron_cfg.optimizer.lr": 4e-6,
        "policy.megatron_cfg.optimizer.min_lr": 4e-6,
        "policy.megatron_cfg.scheduler.lr_warmup_init": 4e-7,
        f"{MTP}_detach_heads": True,
        f"{MTP}_loss_scaling_factor": 0.3,
        f"{MTP}_num_layers": 5,
        f"{MTP}_use_repeated_layer": True,
    },
    # NVIDIA-NeMo/RL at 7ea279abf, recipes/llm/dapo-nanov3.5-30BA3B-4n8g-automodel.yaml
    "lightning35_dapo": {
        "checkpointing.checkpoint_must_save_by": "00:03:45:00",
        "cluster.gpus_per_node": 8,
        "cluster.num_nodes": 4,
        "data.default.prompt_file": None,
        "data.max_input_seq_length": 2048,
        "data.train.dataset_name": "DAPOMath17K",
        "data.validation.dataset_name": "DAPOMathAIME2024",
        "env.math.math_verify_impl": "dapo_math_verify",
        "env.math.num_workers": 16,
        "grpo.adv_estimator.use_leave_one_out_baseline": False,
        "grpo.batch_multiplier": 3,
        "grpo.dynamic_sampling_max_gen_batches": 10,
        "grpo.max_num_epochs": 2,
        "grpo.overlong_filtering": True,
        "grpo.reward_scaling.enabled": True,
        "grpo.reward_scaling.target_min": -1.0,
        "grpo.reward_shaping.enabled": True,
        "grpo.reward_shaping.max_response_length": 8192,
        "grpo.reward_shaping.overlong_buffer_length": 512,
        "grpo.reward_shaping.overlong_buffer_penalty": 1,
        "grpo.use_dynamic_sampling": True,
        "grpo.use_leave_one_out_baseline": False,
        "grpo.val_at_start": True,
        f"{LOSS}.ratio_clip_c": 10,
        f"{LOSS}.ratio_clip_max": 0.28,
        f"{LOSS}.reference_policy_kl_penalty": 0.0,
        f"{LOSS}.truncated_importance_sampling_ratio": 2,
        f"{LOSS}.truncated_importance_sampling_type": "tis",
        f"{LOSS}.use_importance_sampling_correction": True,
        f"{TRAINED}.activation_checkpointing": True,
        f"{TRAINED}.env_vars.PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True",
        f"{TRAINED}.expert_parallel_size": 8,
        f"{TRAINED}.moe_parallelizer.ignore_router_for_ac": True,
        f"{BACKEND}._target_": "nemo_automodel.components.models.common.utils.BackendConfig",
        f"{BACKEND}.attn": "te",
        f"{BACKEND}.dispatcher": "deepep",
        f"{BACKEND}.enable_hf_state_dict_adapter": True,
        f"{BACKEND}.experts": "gmm",
        f"{BACKEND}.linear": "te",
        f"{BACKEND}.rms_norm": "torch_fp32",
        "policy.dynamic_batching.enabled": True,
        "policy.generation.max_new_tokens": 8192,
        "policy.generation.vllm_cfg.enforce_eager": True,
        "policy.generation.vllm_cfg.gpu_memory_utilization": 0.5,
        "policy.generation.vllm_cfg.max_model_len": 9216,
        "policy.generation.vllm_cfg.tensor_parallel_size": 4,
        "policy.logprob_batch_size": 1,
        "policy.make_sequence_length_divisible_by": 8,
        "policy.max_total_sequence_length": 9216,
        "policy.optimizer.kwargs.lr": 1e-6,
        "policy.optimizer.kwargs.weight_decay": 0.1,
        "policy.sequence_packing.enabled": False,
        "policy.sequence_packing.logprob_mb_tokens": 9216,
        "policy.sequence_packing.train_mb_tokens": 9216,
        "policy.train_micro_batch_size": 1,
    },
}
"""Values of published recipes that NeMo-RL v0.7.0 has no config of, where they differ from the config below ours."""


def check(config: RLConfig) -> None:
    """What the engine refuses before any work."""
    refuse(problems_of(config, {}, HERE, {}))


def config_of(recipe: str, *overrides: str) -> RLConfig:
    composed = compose(CONFIG, recipe, [ALLOWED, *overrides])
    return validate(RLConfig, resolve(composed.tree, lambda role, field: "x"), composed.origins)


def built(recipe: str, *overrides: str) -> dict[str, Any]:
    config = config_of(recipe, *overrides)
    return check_config(config, "grpo", nemo_rl.places_without_run(config))


def differences(one: dict[str, Any], other: dict[str, Any]) -> set[str]:
    keys = set(dict(leaves(one))) | set(dict(leaves(other)))
    return {key for key in keys if has(one, key) != has(other, key) or at(one, key) != at(other, key)}


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_recipe_passes_our_checks_and_differs_from_nemo_rls_own_only_where_it_means_to(recipe: str) -> None:
    config = config_of(recipe)
    check(config)
    base = load_bases(config.engine.version)[config.engine.base].values
    theirs = resolved(OmegaConf.create(with_variables(base, complete=False)))
    values, published = built(recipe), PUBLISHED.get(recipe, {})
    assert {key: at(values, key) for key in published} == published
    assert differences(values, theirs) - OURS == MEANT.get(recipe, set()) | published.keys()


def test_every_yaml_that_names_the_engine_is_in_the_list() -> None:
    names = {
        path.stem for path in CONFIG.glob("*.yaml") if compose(CONFIG, path.stem, []).tree.engine.name == "nemo_rl"
    }
    assert names == {*RECIPES, "default", "drawers_nemo_rl"}  # default is super3


def test_named_environments_are_started_instead_of_those_of_the_base() -> None:
    check(config_of("drawers_nemo_rl"))
    values = built("drawers_nemo_rl")
    assert values["env"]["nemo_gym"] == {"config_paths": [POLICY_SERVER, "<drawers.yaml>"]}
    assert values["env"]["should_use_nemo_gym"]
    with pytest.raises(UserError, match=r"engine\.servers.*\n.*set engine\.environment=nemo_gym"):
        config_of("drawers_nemo_rl", "engine.environment=math")


def test_nano3_runs_on_the_newer_version_with_its_own_data_keys() -> None:
    old, new = built("nano3"), built("nano3", "engine.version=v0.7.0")
    assert old["data"]["train_jsonl_fpath"] == "<train.jsonl>"
    assert "train" not in old["data"]
    assert new["data"]["train"] == {"data_path": "<train.jsonl>"}
    assert "train_jsonl_fpath" not in new["data"]


def test_code_that_an_override_names_is_refused() -> None:
    recipe = next(iter(RECIPES))
    with pytest.raises(UserError, match=r"_target_: 'os\.system' would be called.*\n  leave it out"):
        config_of(recipe, "++engine.overrides.policy.dtensor_cfg.automodel_kwargs.backend._target_=os.system")


@pytest.mark.parametrize(
    ("rows", "version", "more"),
    [
        ({"train_jsonl_fpath": "t.jsonl"}, "nano-v3", {"engine.version": "nano-v3", "engine.container": NANO_IMAGE}),
        ({"train": {"data_path": "t.jsonl"}}, "v0.7.0", {}),
        ({}, "v0.7.0", {}),
    ],
)
def test_the_version_of_a_file_is_told_by_its_data_and_said(
    rows: dict[str, Any], version: str, more: dict[str, str]
) -> None:
    said = grpo_file({"defaults": "grpo_math_1B.yaml", "data": rows}, "mine.yaml")
    assert {key: said.settings[key] for key in said.settings if key in VERSION_KEYS} == more
    assert said.notes[0] == f"read as a file of NeMo-RL {version}; set engine.version for a different one"


def test_a_metric_that_grpo_calls_otherwise_is_translated() -> None:
    content = {"defaults": "grpo_math_1B.yaml", "checkpointing": {"metric_name": "val:reward"}}
    said = grpo_file(content, "mine.yaml")
    assert said.settings["engine.overrides.checkpointing.metric_name"] == "val:accuracy"
    assert "NeMo-RL's GRPO calls it val:accuracy" in said.notes[1]
    content["checkpointing"] = {"metric_name": "val:total_reward/mean"}
    assert "engine.overrides.checkpointing.metric_name" not in grpo_file(content, "mine.yaml").settings


GENERATION = "++engine.overrides.policy.generation.vllm_cfg"
BATCH = "++engine.overrides.policy.train_global_batch_size"
WRONG = [
    (
        "super3",
        f"{BATCH}=1000",
        "multiple of policy.train_global_batch_size",
    ),
    ("super3", "engine.num_nodes=3", "24 training GPUs are not a multiple of 16"),
    ("super3_rlvr", "engine.num_nodes=144", "no GPU is left for training"),
    ("super3", f"{GENERATION}.tensor_parallel_size=3", "not a multiple of 3"),
    (
        "super3",
        f"{GENERATION}.async_engine=false",
        "NeMo-Gym needs .*async_engine: true",
    ),
    ("super3", f"{GENERATION}.expose_http_server=false", "expose_http_server: true"),
    ("super3", "++engine.overrides.env.nemo_gym.config_paths=[a.yaml]", "lacks .*vllm_model_for_training"),
    ("super3", "grpo.max_new_tokens=60000", "exceeds engine.max_total_sequence_length"),
    ("super3", "train.micro_batch_size=3", "not a multiple of train.micro_batch_size|not a multiple of 3 x"),
    ("super3", "scheduler.lr_decay_style=WSD", "NeMo-RL has no WSD"),
    ("super3", "++engine.overrides.grpo.seed=1", "another setting decides this"),
    ("super3", "engine.environment=base", "set run.data=null"),
    ("super49b", "++engine.overrides.policy.router_replay.enabled=true", "needs policy.megatron_cfg.enabled: true"),
    ("super3_rlhf", "grpo.num_generations_per_prompt=8", "genrm_compare compares"),
    ("super3_rlvr", f"{BATCH}=1024", "force_on_policy_ratio needs"),
    ("nano3", "engine.environment=math", "not available with engine.version nano-v3"),
    ("super49b", "engine.allow_experimental=false", "#1571"),
    ("super49b", "++engine.overrides.policy.dtensor_cfg.custom_parallel_plan=my.plan", "code from outside"),
    ("super49b", "engine.base=examples/configs/sft.yaml", "a config of sft"),
    ("super49b", "++engine.overrides.checkpointing.metric_name=loss", "must begin with 'val:' or 'train:'"),
    ("tiny", "++engine.overrides.env.math.math_verify_impl=none", "every reward would be 0"),
]


@pytest.mark.parametrize(("recipe", "override", "message"), WRONG)
def test_what_cannot_work_together_is_refused_before_any_gpu(recipe: str, override: str, message: str) -> None:
    engine = ["engine=nemo_rl"] if recipe == "tiny" else []
    with pytest.raises(UserError, match=message):
        check(config_of(recipe, *engine, override))


def test_own_rows_are_sources_of_the_run_and_looked_for_before_it(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    words = ("run.data=null", f"engine.train_rows={file}", f"engine.valid_rows={file}")
    config = config_of("nano3", *words)
    found = nemo_rl.NeMoRL().needs(config, {}, HERE).others
    assert [problem.key for problem in found if str(file) in problem.message] == [
        "engine.train_rows",
        "engine.valid_rows",
    ]
    digests = []
    for text in ("{}\n", "{}\n{}\n"):
        file.write_text(text)
        found = nemo_rl.NeMoRL().needs(config, {}, HERE).others
        assert not any(f"file {file} not found" in problem.message for problem in found)
        digests.append([source.digest for source in STEP.sources(config)])
    assert len(digests[0]) == 2 and digests[0] != digests[1], "other rows are another run"


def test_the_math_environment_always_has_a_verifier() -> None:
    assert built("tiny", "engine=nemo_rl")["env"]["math"]["math_verify_impl"] == "hf_math_verify"


def test_several_processes_are_refused() -> None:
    machine = Machine("3.12", 8, (), 10**12, 10**13, packages={})
    found = [problem.message for problem in nemo_rl.NeMoRL().needs(config_of("super3"), {}, machine).others]
    assert any("needs one process, not 8" in message for message in found)


def test_a_value_of_ours_reaches_what_nemo_rl_derives_from_it() -> None:
    values = built("super3", "engine.max_total_sequence_length=32768", "grpo.max_new_tokens=16384")
    assert values["policy"]["sequence_packing"]["train_mb_tokens"] == 32768
    assert values["policy"]["generation"]["vllm_cfg"]["max_model_len"] == 32768
    assert values["policy"]["generation"]["max_new_tokens"] == 16384


def test_baseline_and_updates_of_a_step_reach_it() -> None:
    plain = built("super3")
    changed = built("super3", "grpo.updates_per_step=4", "grpo.use_leave_one_out_baseline=false")
    assert [values["policy"]["train_global_batch_size"] for values in (plain, changed)] == [2048, 512]
    for values, baseline in ((plain, True), (changed, False)):
        assert values["grpo"]["use_leave_one_out_baseline"] is baseline
    estimator = built("super49b", "grpo.use_leave_one_out_baseline=false")["grpo"]["adv_estimator"]
    assert estimator["use_leave_one_out_baseline"] is False, "what NeMo-RL derives from it"


def test_losses_and_sampling_reach_it_where_they_are_set() -> None:
    plain, loss = built("super3"), "loss_fn.token_level_loss"
    assert not has(plain, loss) and not has(plain, "grpo.reward_shaping.enabled"), "what engine.base says"
    gspo = built("super3", "grpo.loss_type=grpo", "grpo.sequence_level_importance_ratios=true")
    assert at(gspo, loss) is False and at(gspo, "loss_fn.use_cispo") is False
    assert at(gspo, "loss_fn.sequence_level_importance_ratios") is True
    assert at(gspo, "loss_fn.force_on_policy_ratio") is False, "ratios count"
    with pytest.raises(UserError, match=r"engine nemo_rl leaves the age of weights to engine\.base"):
        built("super3", "grpo.max_staleness=1", "grpo.truncated_importance_sampling_ratio=2")
    cispo = built(
        "super3", "grpo.loss_type=cispo", "grpo.reference_policy_kl_type=k1", "grpo.use_dynamic_sampling=true"
    )
    assert (at(cispo, loss), at(cispo, "loss_fn.use_cispo")) == (True, True)
    assert at(cispo, "loss_fn.reference_policy_kl_type") == "k1"
    assert at(cispo, "grpo.use_dynamic_sampling") is True and at(cispo, "grpo.dynamic_sampling_max_gen_batches") == 10
    shaped = built("super3", "grpo.overlong_buffer_length=4096", "grpo.overlong_buffer_penalty=1")["grpo"][
        "reward_shaping"
    ]
    assert shaped == {
        "enabled": True,
        "overlong_buffer_length": 4096,
        "overlong_buffer_penalty": 1.0,
        "max_response_length": 49152,
    }
    with pytest.raises(UserError, match="another setting decides this"):
        check(config_of("super3", "grpo.loss_type=grpo", "++engine.overrides.loss_fn.token_level_loss=true"))
