"""The sections of NeMo Evaluator's engines: strict where the launcher is not, rendered as version 0.2.6 takes it."""

from pathlib import Path

import pytest
import yaml
from evaluator_support import CONFIG, config_of

from nemotron_app.main import dispatch
from nemotron_app.request import Request
from nemotron_shared.engine.engine import engine_of, problems_of, refuse
from nemotron_shared.machine.machine import Machine
from nemotron_shared.system.errors import UserError
from stages.eval.engines.nemo_evaluator_launcher.launcher import rendered_config
from stages.eval.schema import EvalConfig

FIVE = ["adlr_mmlu", "adlr_arc_challenge_llama_25_shot", "hellaswag", "openbookqa", "adlr_winogrande_5_shot"]
NANO_ORDER = ["adlr_mmlu", "adlr_arc_challenge_llama_25_shot", "adlr_winogrande_5_shot", "hellaswag", "openbookqa"]
CLUSTER = (
    "engine.execution.username=me",
    "engine.execution.account=mine",
    "engine.execution.output_dir=/lustre/mine/evaluations",
)


def check(config: EvalConfig) -> None:
    """What the engine refuses before any work."""
    refuse(problems_of(config, {}, Machine.here(Path()), {}))


@pytest.mark.parametrize(("recipe", "order", "parallel"), [("super3", FIVE, (1, 8)), ("nano3", NANO_ORDER, (2, 8))])
def test_the_recipes_are_nvidias(recipe: str, order: list[str], parallel: tuple[int, int]) -> None:
    told = rendered_config(config_of(recipe), "/models/rl")
    assert [task["name"] for task in told["evaluation"]["tasks"]] == order
    assert told["evaluation"]["tasks"][0]["nemo_evaluator_config"] == {"config": {"params": {"top_p": 0.0}}}
    params = told["evaluation"]["nemo_evaluator_config"]["config"]["params"]
    assert (params["max_retries"], params["parallelism"], params["request_timeout"]) == (5, 4, 6000)
    assert params["extra"] == {"tokenizer": "/models/rl", "tokenizer_backend": "huggingface"}
    served = told["deployment"]
    assert (served["port"], served["checkpoint_path"]) == (1235, "/models/rl/megatron")
    tensor, expert = parallel
    assert f"--tensor_model_parallel_size {tensor} --expert_model_parallel_size {expert}" in served["command"]
    assert "limit_samples" not in params
    assert "export" not in told


SHORT = [
    "adlr_mmlu", "adlr_mmlu_pro_5_shot_base", "adlr_agieval_en_cot", "adlr_gpqa_diamond_cot_5_shot",
    "adlr_gsm8k_cot_8_shot", "adlr_minerva_math_nemo_4_shot", "adlr_math_500_4_shot_sampled", "adlr_humaneval_greedy",
    "adlr_mbpp_sanitized_3_shot_greedy", "adlr_arc_challenge_llama_25_shot", "hellaswag", "openbookqa", "piqa",
    "adlr_winogrande_5_shot", "adlr_race", "adlr_global_mmlu_lite_5_shot", "adlr_mgsm_native_cot_8_shot",
]  # fmt: skip
LONG = [f"ruler-{length}-completions" for length in ("64k", "128k", "512k", "1m")]
"""NVIDIA-NeMo/Evaluator at ac66aff5d, local_nemotron-3-super-120b-a12b-base.yaml."""
MORE = {"adlr_humaneval_sampled", "adlr_mbpp_sanitized_3_shot_sampled", "adlr_commonsense_qa_7_shot", "social_iqa"}
"""NVIDIA-NeMo/Gym at 07d6b0d07, lightning-3.5/base/base-suite.yaml, besides SHORT."""


@pytest.mark.parametrize(
    ("recipe", "names", "image", "devices", "params"),
    [
        ("super3_base", {*SHORT, *LONG}, "vllm/vllm-openai:v0.13.0", 8, (4, 360, None)),
        ("lightning35", {*SHORT, *MORE}, "vllm/vllm-openai:v0.19.1-cu130", 4, (32, 3600, 0.01)),
    ],
)
def test_base_models_are_scored_as_nvidia_publishes_it(
    recipe: str, names: set[str], image: str, devices: int, params: tuple[int, int, float | None]
) -> None:
    told = rendered_config(config_of(recipe), "/models/base")
    tasks, served = told["evaluation"]["tasks"], told["deployment"]
    assert len(tasks) == 21 and {task["name"] for task in tasks} == names
    assert (served["image"], served["tensor_parallel_size"], served["checkpoint_path"]) == (
        image,
        devices,
        "/models/base",
    )
    assert served["endpoints"]["health"] == "/health", "vLLM has no other; the default is the Ray deployment's"
    asked = told["evaluation"]["nemo_evaluator_config"]["config"]["params"]
    assert (asked["parallelism"], asked["request_timeout"], asked.get("temperature")) == params
    uncached = {"target": {"api_endpoint": {"adapter_config": {"use_caching": False}}}}
    for task in tasks:
        own = task.get("nemo_evaluator_config")
        if task["name"] in LONG:
            assert own == {"config": {"params": {"extra": {"tokenizer_backend": "hf"}}}}
        else:
            assert own == (uncached if task["name"].endswith("_sampled") else None), "sampled answers are not kept"


def test_the_refused_keys_of_older_configs_are_not_written() -> None:
    told = rendered_config(config_of("nano3", *CLUSTER), "/models/rl")
    assert "env_vars" not in told["execution"]
    assert "multiple_instances" not in told["deployment"]
    assert told["execution"]["num_instances"] == 1
    assert told["execution"]["walltime"] == "04:00:00"
    assert told["defaults"] == [{"execution": "slurm/default"}, {"deployment": "generic"}, "_self_"]


def test_tasks_are_picked_and_limited() -> None:
    told = rendered_config(
        config_of("super3", "evaluation.tasks=[hellaswag,adlr_mmlu]", "evaluation.limit=10"), "/models/rl"
    )
    assert [task["name"] for task in told["evaluation"]["tasks"]] == ["adlr_mmlu", "hellaswag"]
    assert told["evaluation"]["nemo_evaluator_config"]["config"]["params"]["limit_samples"] == 10


def test_an_unknown_task_is_refused_with_the_nearest_one() -> None:
    with pytest.raises(UserError, match="no task named 'helaswag'") as caught:
        check(config_of("super3", "evaluation.tasks=[helaswag]"))
    assert "hellaswag" in str(caught.value)


def test_no_rule_for_answers_is_ignored_silently() -> None:
    config = config_of("super3", "evaluation.scorers=[{task: hellaswag, path: mine.py:right}]")
    with pytest.raises(UserError, match="the launcher's tasks judge answers by their own rules"):
        check(config)
    assert "evaluation.verdict" in config.unused


def test_the_task_option_belongs_to_eval(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[Request] = []
    monkeypatch.setattr("nemotron_app.launch.run_step", lambda stage, verb, request: ran.append(request))
    assert dispatch(["super3", "eval", "-c", "super3", "-t", "adlr_mmlu", "-t", "hellaswag"]) == 0
    assert "evaluation.tasks=[adlr_mmlu,hellaswag]" in ran[0].overrides
    for other in (["sft"], ["pipeline"], ["data", "prep", "eval"]):
        with pytest.raises(UserError, match="-t picks tasks of an evaluation"):
            dispatch(["super3", *other, "-t", "adlr_mmlu"])


def test_vllm_serves_the_hugging_face_folder() -> None:
    changed = ("engine.deployment.type=vllm", "engine.container=vllm/vllm-openai:v0.11.0")
    told = rendered_config(config_of("super3", *changed), "/models/rl")
    assert told["deployment"]["checkpoint_path"] == "/models/rl"
    assert told["deployment"]["tensor_parallel_size"] == 8
    assert "command" not in told["deployment"]


def test_wandb_is_written_only_where_a_project_is_named() -> None:
    told = rendered_config(config_of("nano3", *CLUSTER, "engine.wandb.project=nemotron"), "/models/rl")
    assert told["execution"]["auto_export"] == {"destinations": ["wandb"]}
    assert told["export"] == {
        "wandb": {"entity": None, "project": "nemotron"},
        "env_vars": {"WANDB_API_KEY": "host:WANDB_API_KEY"},
    }


def test_the_dry_run_shows_what_the_launcher_is_told() -> None:
    config = config_of("nano3", *CLUSTER)
    shown = engine_of(config).render(config, "/models/rl")
    assert shown is not None
    assert yaml.safe_load(shown) == rendered_config(config, "/models/rl")
    assert engine_of(config_of("tiny")).render(config_of("tiny"), "/models/rl") is None


def test_a_cluster_needs_an_account(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match=r"engine\.execution\.account is not set"):
        check(config_of("nano3", "engine.execution.username=me"))
    monkeypatch.setenv("HF_TOKEN", "none")
    check(config_of("nano3", *CLUSTER))
    check(config_of("super3"))


def test_what_is_handed_over_must_be_set_here(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HF_TOKEN", "WANDB_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(UserError, match=r"engine\.env_vars\.HF_TOKEN is host:HF_TOKEN, but HF_TOKEN is not set here"):
        check(config_of("super3"))
    check(config_of("super3", "~engine.env_vars.HF_TOKEN"))
    with pytest.raises(UserError, match=r"engine\.wandb\.project=goats: the job that exports the scores needs a key"):
        check(config_of("nano3", *CLUSTER, "engine.wandb.project=goats"))


# What the launcher's own dry run lets pass.
@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("+engine.deployment.tensor_paralel_size=8", "tensor_parallel_size"),
        ("+engine.execution.wall_time=1", "did you mean 'walltime'"),
        ("+engine.params.paralellism=9", "did you mean 'parallelism'"),
        ("engine.execution.walltime=4h", "engine.execution.walltime"),
        ("engine.params.parallelism=0", "greater than or equal to 1"),
        ("engine.tasks=[{name: hellaswag, parms: {}}]", "unknown key"),
        ("engine.tasks=[{name: hellaswag, params: {top_k: 1}}]", "unknown key"),
        ("engine.tasks=[{name: hellaswag, params: {}}, {name: hellaswag, params: {}}]", "lists a task twice"),
        ("engine.env_vars={HF_HOME: /cache}", "lit:/cache"),
        ("engine.container=nvcr.io/nvidia/nemo", "give the image a tag"),
        ("engine.container=null", "needs engine.container"),
        ("engine.deployment.type=none", "needs engine.deployment.url"),
        ("engine.execution.num_instances=2", "not a multiple of num_instances 2"),
        ("~engine.execution.walltime", "missing key 'engine.execution.walltime'"),
    ],
)
def test_a_wrong_launcher_config_is_refused(override: str, message: str) -> None:
    with pytest.raises(UserError) as caught:
        config_of("super3", override)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("url", "good"),
    [
        ("http://127.0.0.1:8000", True),
        ("https://serve.example/model-a", True),
        ("http://127.0.0.1:8000/v1/completions", False),
        ("127.0.0.1:8000", False),
    ],
)
def test_an_endpoint_is_a_base_url(url: str, good: bool) -> None:
    changed = ("engine=nemo_evaluator", f"engine.endpoint={url}")
    if good:
        assert config_of("tiny", *changed).engine.endpoint == url
        return
    with pytest.raises(UserError, match=r"engine.*endpoint"):
        config_of("tiny", *changed)


def test_telemetry_is_off_unless_asked() -> None:
    for engine in ("nemo_evaluator", "nemo_evaluator_launcher"):
        values = yaml.safe_load((CONFIG / "engine" / f"{engine}.yaml").read_text())
        assert values["telemetry"] is False


def test_every_key_is_explained() -> None:
    page = (Path(__file__).parents[3] / "docs" / "engines" / "nemo_evaluator.md").read_text(encoding="utf-8")
    for engine in ("nemo_evaluator", "nemo_evaluator_launcher"):
        values = yaml.safe_load((CONFIG / "engine" / f"{engine}.yaml").read_text())
        missing = [key for key in _keys(values, "engine") if f"`{key}`" not in page]
        assert missing == []


def _keys(node: dict, above: str) -> list[str]:
    """Dotted keys; the free mappings count as one."""
    found = []
    for name, child in node.items():
        key = f"{above}.{name}"
        free = name == "env_vars" or above == "engine.execution.mounts"
        found += _keys(child, key) if isinstance(child, dict) and not free else [key]
    return found
