"""A dry run cannot lie: for every shipped config and many environments it exits 0 exactly where the start succeeds.

An environment is a described machine, with or without the data, the engine and the right model. The start is the real
one up to the work; there `first_step` stands in for the engine's libraries and fails where they would.
"""

import json
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import yaml
from omegaconf import DictConfig
from support import ROOT, STAGES, nemotron

from nemotron_data.formats.eval_tasks import write_tasks
from nemotron_data.tokenizers.tiny import save_tokenizer
from nemotron_engines.checks import own_packages
from nemotron_engines.modeling.architecture import Parameters, load_architecture, parameters_of
from nemotron_engines.nemo_rl.versions import VERSIONS, load_bases
from nemotron_shared.artifacts import Artifact, Producer, Store
from nemotron_shared.config.compose import compose
from nemotron_shared.engine.spec import Outcome, Step, Task
from nemotron_shared.families import families
from nemotron_shared.machine.description import read_machine
from nemotron_shared.machine.machine import Machine
from nemotron_shared.step import start
from nemotron_shared.step import step as runtime_step
from nemotron_shared.step.arguments import Arguments, parse_arguments
from nemotron_shared.step.start import Start, load
from nemotron_shared.step.step import look_at, open_run, plan, publish
from nemotron_shared.system.errors import UserError

OWN = {
    "local",
    "tiny",
    "tiny_mtp",
    "qa",
    "one_gpu",
    "held_out",
    "dpo",
    "dpo_tiny",
    "reward",
    "reward_tiny",
    "distill_tiny",
    "drawers",
    "drawers_text",
}
"""Configs for any model; the others are recipes of a family."""
OWN_ENGINES = {"pretrain": ("automodel", "megatron_bridge"), "sft": ("automodel", "megatron_bridge", "nemo_rl"),
               "rl": ("nemo_rl",), "eval": ("nemo_evaluator", "nemo_evaluator_launcher")}  # fmt: skip
# What the configs leave to their user, besides a store, data and a model.
GIVEN = {
    ("sft", "super49b"): ("engine.allow_experimental=true",),
    ("rl", "super49b"): ("engine.allow_experimental=true",),
    ("rl", "super3_swe2"): ("++engine.overrides.sif_dir=/images",),
    ("eval", "nano3"): ("engine.execution.username=me", "engine.execution.account=ours"),
    ("eval", "tiny+nemo_evaluator_launcher"): (
        "engine.execution.username=me", "engine.execution.account=ours", "engine.execution.partition=batch",
        "engine.container=nvcr.io/nvidia/nemo:26.02", "engine.deployment.type=vllm",
    ),
}  # fmt: skip
PACKAGES = {
    "transformers": {},
    "trl": {"trl": version("trl"), "datasets": version("datasets")},
    "lm_eval": {"lm-eval": version("lm-eval"), "datasets": version("datasets")},
    "megatron_bridge": {"megatron-core": "0.19.2", "megatron-bridge": "0.6.2"},
    "automodel": {"nemo-automodel": "0.7.0", "transformers": "5.18.0", "mamba-ssm": "2.3.2", "causal-conv1d": "1.7.0"},
    "nemo_evaluator": {"nemo-evaluator": "0.2.8", "nvidia-lm-eval": "26.3"},
    "nemo_evaluator_launcher": {"nemo-evaluator-launcher": "0.2.6"},
}
DATA = {"pretrain": "data", "sft": "data", "rl": "text", "eval": "text"}  # text of no tokenizer
Values = dict[str, Any]


@dataclass
class Case:
    """A config, a machine, and what a user gives."""

    stage: str
    name: str
    place: Path
    machine: Values
    overrides: list[str]

    @property
    def choice(self) -> str:
        return self.name.partition("+")[0]

    @property
    def tree(self) -> Any:
        engine = self.name.partition("+")[2]
        return composed(self.stage, self.choice, (f"engine={engine}",) if engine else ()).tree

    @property
    def engine(self) -> str:
        return self.tree.engine.name

    @property
    def step(self) -> Step:
        return import_module(f"stages.{self.stage}.train").STEP

    def load(self, machine: Path | None) -> Start:
        return load(self.step, Arguments(self.choice, tuple(self.overrides), machine is not None, False, machine))

    def dry(self) -> list[str]:
        """What a dry run for the described machine lists."""
        file = self.place / "machine.yaml"
        file.write_text(yaml.safe_dump(self.machine))
        return look_at(self.load(file)).problems

    def start(self, monkeypatch: pytest.MonkeyPatch) -> list[str]:
        """What keeps the same command from its first step on that machine."""
        file = self.place / "machine.yaml"
        file.write_text(yaml.safe_dump(self.machine))
        with monkeypatch.context() as patched:
            patched.setattr(Machine, "here", lambda folder, processes=1: read_machine(file))
            patched.setattr(runtime_step, "make", self.pretend_to_prepare)
            try:
                task = plan(self.load(None))
            except UserError as error:
                return [str(error)]
        first_step(task, self.machine)
        return []

    def pretend_to_prepare(self, start: Start) -> tuple[Artifact, bool]:
        with open_run(start.step, plan(start)) as task:
            rows = {"rows": "pairs"} if self.tree.data_prep.get("pairs") else {}
            return publish(start.step, task, Outcome(data_folder(task.run.fresh_output()), rows)), False


@cache
def composed(stage: str, name: str, overrides: tuple[str, ...]) -> Any:
    return compose(ROOT / "stages" / stage / "config", name, list(overrides))


def configs() -> Iterator[tuple[str, str]]:
    """Every shipped YAML: the configs, each block of an engine on top of `tiny`, each layout of the recipe."""
    for stage in STAGES:
        for file in sorted((ROOT / "stages" / stage / "config").glob("*.yaml")):
            yield stage, file.stem
        for engine in OWN_ENGINES[stage]:
            yield stage, f"tiny+{engine}"
        for file in sorted((ROOT / "stages" / stage / "config" / "engine").glob("super3_*.yaml")):
            yield stage, f"default+{file.stem}"


def data_folder(folder: Path) -> Path:
    """What a step looks at in its data before it begins."""
    save_tokenizer(folder / "tokenizer")
    for split in ("train", "val"):
        (folder / f"{split}.jsonl").write_text("")
    write_tasks(folder, {"sums": ("generate", [{"question": "1+1", "expected": "2", "key": "1+1"}])})
    return folder


def model_folder(folder: Path, architecture: str) -> Path:
    """A model as its config.json and the header of its weights describe it."""
    save_tokenizer(folder)
    fields = load_architecture(architecture, {})
    layers = {"block_configs": [{}] * 80} if architecture == "super49b" else {}
    (folder / "config.json").write_text(json.dumps({"model_type": "nemotron_h"} | fields | layers))
    size = Parameters(49_000_000_000) if architecture == "super49b" else parameters_of(fields, 512)
    shapes = {"lm_head.weight": [size.total - size.experts], "layers.1.mixer.experts.up_proj": [size.experts]}
    # Of a type whose width no reader knows: the shapes of the whole model, and no bytes.
    entries = {name: {"dtype": "F256", "shape": shape, "data_offsets": [0, 0]} for name, shape in shapes.items()}
    header = json.dumps(entries).encode()
    (folder / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)
    (folder / "megatron").mkdir()
    (folder / "megatron" / "latest_train_state.pt").touch()
    return folder


@pytest.fixture(scope="module")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Data and a model of each architecture."""
    place = tmp_path_factory.mktemp("shelf")
    data_folder(place / "data")
    shutil.rmtree(data_folder(place / "text") / "tokenizer")
    for name in ("super3_tiny", *families()):
        model_folder(place / name, name)
    (place / "rows.jsonl").write_text('{"messages": [{"role": "user", "content": "a"}]}\n')
    return place


@pytest.fixture
def make_case(tmp_path: Path, shelf: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], Case]:
    """A case in which everything is there, on the machine that the config is written for."""
    monkeypatch.setenv("PERSISTENT_CACHE", "/cache")
    # models and data here are descriptions, which cannot be trained
    monkeypatch.setattr(runtime_step, "is_rehearsed", lambda checked: False)
    monkeypatch.setattr(start, "compose", lambda folder, name, words: composed(folder.parent.name, name, words))

    def make(stage: str, name: str) -> Case:
        case = Case(stage, name, tmp_path, {}, [f"run.home={shelf / 'home'}"])
        run, family = case.tree.run, str(case.tree.run.family)
        case.overrides += [f"engine={name.partition('+')[2]}"] if "+" in name else []
        case.overrides += GIVEN.get((stage, name), ())
        if run.data is not None:
            case.overrides.append(
                "run.data=null" if name == "tiny+nemo_rl" and stage == "sft" else f"run.data={shelf / DATA[stage]}"
            )
        recipe = case.choice not in OWN
        if run.model is not None or name in ("local", "one_gpu"):
            case.overrides.append(f"run.model={shelf / (family if recipe else 'super3_tiny')}")
        if name == "distill_tiny":
            case.overrides.append(f"run.teacher={shelf / 'super3_tiny'}")
        if name == "nano3_lora_automodel":
            case.overrides += [f"engine.chats.{one}={shelf / 'rows.jsonl'}" for one in ("train", "valid")]
        case.machine = machine_for(case)
        return case

    return make


def machine_for(case: Case) -> Values:
    """The machine that a config is written for."""
    engine, section = case.engine, case.tree.engine
    packages = {one.name: version(one.name) for one in own_packages("nemotron-engines")}
    machine: Values = {"python": "3.12", "processes": 1, "gpus": None, "memory_gb": 64, "free_disk_gb": 20000}
    small = case.name.endswith("_32gpus")
    eight = {"name": "B200" if small else "H100", "count": 8, "memory_gb": 180 if small else 80}
    if engine == "nemo_rl":
        known = VERSIONS[section.version]
        base = load_bases(section.version)[section.base].values
        judges = ((base.get("env") or {}).get("nemo_gym") or {}).get("num_gpu_nodes", 0)
        return machine | {"nodes": section.num_nodes + judges, "gpus": eight, "packages": {"nemo-rl": known.package}}
    if engine == "megatron_bridge" and (section.recipe or case.stage == "sft"):
        processes = section.world_size or 1
        machine |= {"processes": processes, "nodes": max(1, processes // 8), "gpus": eight}
    if case.name == "nano3_lora_automodel":
        machine |= {"processes": 4, "gpus": {"name": "A100", "count": 4, "memory_gb": 64}}
    if case.name == "nano3_lora_one_gpu":
        machine |= {"gpus": {"name": "H100", "count": 1, "memory_gb": 80}}
        packages |= {"mamba-ssm": "2.3.2", "causal-conv1d": "1.7.0"}
    return machine | {"packages": packages | PACKAGES[engine]}


def first_step(task: Task, machine: Values) -> None:
    """What the engine's libraries would do with it, as far as that takes neither a GPU nor an hour."""
    config = task.config
    engine, packages, processes = config.engine, machine["packages"], machine["processes"]
    for package in PACKAGES.get(engine.name, {"nemo-rl": ""}):
        if package not in ("mamba-ssm", "causal-conv1d"):
            assert package in packages, f"No module named {package}"
    if engine.name == "megatron_bridge":
        copy = engine.tensor_model_parallel_size * engine.pipeline_model_parallel_size * engine.context_parallel_size
        assert processes % copy == 0, "world size is not divisible"
        assert processes % (engine.expert_model_parallel_size * engine.pipeline_model_parallel_size) == 0
        assert machine["gpus"] or not hasattr(config.data_prep, "pack_size"), "no Transformer Engine on a CPU"
    data, model = task.inputs.get("data"), task.inputs.get("model")
    if data and model and config.engine.name not in ("nemo_rl",) and hasattr(config.data_prep, "tokenizer"):
        files = data.path / "tokenizer" / "tokenizer.json", model.path / "tokenizer.json"
        assert files[0].read_bytes() == files[1].read_bytes(), "an id means something else"
    rows = getattr(config, "rows_per_step", None)
    if rows and engine.name in ("transformers", "trl"):
        micro = config.train.micro_batch_size or rows // processes
        assert rows % (micro * processes) == 0, "the batch does not divide"


# Each changes one thing of a case in which all is well, and says whether the start fails then.


def all_there(case: Case) -> bool:
    return False


def no_engine(case: Case) -> bool:
    names = PACKAGES.get(case.engine) or {"transformers": "", "nemo-rl": ""}
    case.machine["packages"] = {name: what for name, what in case.machine["packages"].items() if name not in names}
    return True


def other_engine(case: Case) -> bool:
    names = PACKAGES.get(case.engine) or {"transformers": "", "nemo-rl": ""}
    case.machine["packages"] |= {name: "0.0.1" for name in names if name not in ("mamba-ssm", "causal-conv1d")}
    return True


def no_data(case: Case) -> bool:
    needed = any(word.startswith("run.data=/") for word in case.overrides)
    case.overrides = [word for word in case.overrides if not word.startswith(("run.data=/", "run.home="))]
    case.overrides.append(f"run.home={case.place / 'home'}")  # where the data may be prepared
    nothing = case.tree.data_prep.source is None and not case.tree.data_prep.get("tasks")
    return needed and (case.tree.run.missing_data == "error" or nothing)


def no_source(case: Case) -> bool:
    case.overrides.append("data_prep.source=/nowhere.jsonl")
    return any(word.startswith("run.data=/") for word in case.overrides)


def other_tokenizer(case: Case) -> bool:
    model = next((word for word in case.overrides if word.startswith("run.model=/")), None)
    if model is None:
        return False
    folder = case.place / "other"
    shutil.copytree(model.partition("=")[2], folder)
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer | {"version": "other"}))
    case.overrides[case.overrides.index(model)] = f"run.model={folder}"
    return case.stage in ("pretrain", "sft") and any(word.startswith("run.data=/") for word in case.overrides)


def three_processes(case: Case) -> bool:
    case.machine |= {"processes": 3, "nodes": 1}
    return case.stage != "eval"


def other_family(case: Case) -> bool:
    recipe = case.choice not in OWN
    case.overrides.append("run.family=nano3" if case.tree.run.family != "nano3" else "run.family=super3")
    return recipe


def small_model(case: Case) -> bool:
    model = next((word for word in case.overrides if word.startswith("run.model=/")), None)
    if model is None or case.stage == "eval":
        return False
    other = Path(model.partition("=")[2]).with_name("super3_tiny")
    case.overrides[case.overrides.index(model)] = f"run.model={other}"
    return case.choice not in OWN


def old_python(case: Case) -> bool:
    case.machine["python"] = "3.11"
    return case.engine == "megatron_bridge"


def full_disk(case: Case) -> bool:
    case.machine["free_disk_gb"] = 0
    return case.stage != "eval" and case.engine not in ("nemo_rl",)


ENVIRONMENTS = (
    all_there, no_engine, other_engine, no_data, no_source, other_tokenizer, three_processes, other_family, small_model,
    old_python, full_disk,
)  # fmt: skip


def judge(case: Case, change: Callable[[Case], bool], monkeypatch: pytest.MonkeyPatch) -> None:
    fails = change(case)
    listed, raised = case.dry(), case.start(monkeypatch)
    assert bool(listed) == fails, listed or "the dry run passes"
    assert bool(raised) == fails, raised or "the start succeeds"
    if change not in (no_data, no_source):
        assert "\n".join(listed) == "\n".join(raised)


@pytest.mark.parametrize(("stage", "name"), [*configs()])
def test_every_config_passes_on_the_machine_it_is_written_for(
    stage: str, name: str, make_case: Callable[[str, str], Case], monkeypatch: pytest.MonkeyPatch
) -> None:
    judge(make_case(stage, name), all_there, monkeypatch)


@pytest.mark.parametrize("stage", ["sft", "rl"])
def test_super_49b_without_block_configs_is_refused(
    stage: str, make_case: Callable[[str, str], Case], tmp_path: Path
) -> None:
    case = make_case(stage, "super49b")
    model = next(word for word in case.overrides if word.startswith("run.model=/"))
    folder = tmp_path / "other"
    shutil.copytree(model.partition("=")[2], folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({key: config[key] for key in config if key != "block_configs"}))
    case.overrides[case.overrides.index(model)] = f"run.model={folder}"
    assert "config.json has no block_configs" in "\n".join(case.dry())


def changed_cases() -> Iterator[tuple[str, str, Callable[[Case], bool]]]:
    """A change for each config, and two where a stage has few: each stage meets each with at least two configs."""
    changes = ENVIRONMENTS[1:]
    of_stage = Counter(stage for stage, _ in configs())
    for number, (stage, name) in enumerate(configs()):
        few = of_stage[stage] < 2 * len(changes)
        for change in (changes[number % len(changes)], *([changes[(number + 5) % len(changes)]] if few else [])):
            yield stage, name, change


def test_every_stage_meets_every_change() -> None:
    met = {(stage, change) for stage, _, change in changed_cases()}
    assert met == {(stage, change) for stage in STAGES for change in ENVIRONMENTS[1:]}


@pytest.mark.slow
@pytest.mark.parametrize(("stage", "name", "change"), [*changed_cases()], ids=lambda one: getattr(one, "__name__", one))
def test_a_dry_run_exits_0_exactly_where_the_start_succeeds(
    stage: str,
    name: str,
    change: Callable[[Case], bool],
    make_case: Callable[[str, str], Case],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    judge(make_case(stage, name), change, monkeypatch)


# One thing at a time, as people see it.


def told(stage: str, family: str, *words: str, home: Path, machine: Path | None = None) -> tuple[int, str]:
    """Exit code and problems of `nemotron FAMILY STAGE ... --dry-run`."""
    step = import_module(f"stages.{stage}.train").STEP
    config, *overrides = words
    overrides += [f"run.home={home}", f"run.family={family}"]
    found = look_at(load(step, Arguments(config, tuple(overrides), True, False, machine))).problems
    return int(bool(found)), "\n".join(found)


def sections(tree: DictConfig, above: str = "") -> Iterator[str]:
    """The keys of a config that hold keys of their own."""
    for key, value in tree.items_ex(resolve=False):
        if isinstance(value, DictConfig):
            yield f"{above}{key}"
            yield from sections(value, f"{above}{key}.")


@pytest.mark.parametrize("stage", STAGES)
def test_a_value_in_the_place_of_a_section_is_a_problem_or_means_something(stage: str, tmp_path: Path) -> None:
    step = import_module(f"stages.{stage}.train").STEP
    for section in sections(composed(stage, "tiny", ()).tree):
        for value in ("text", "null"):
            overrides = (f"{section}={value}", f"run.home={tmp_path}", "run.family=super3")
            try:
                look_at(load(step, Arguments("tiny", overrides, True, False, None)))
            except UserError as error:
                assert str(error), section


def test_data_that_does_not_exist_or_has_no_tokenizer(tmp_path: Path) -> None:
    code, said = told("sft", "super3", "tiny", "data_prep.source=/nowhere.jsonl", home=tmp_path)
    assert (code, "/nowhere.jsonl" in said) == (1, True)
    code, said = told("sft", "super3", "tiny", f"data_prep.tokenizer.model={tmp_path}", home=tmp_path)
    assert (code, "holds no tokenizer.json" in said) == (1, True)
    assert "data_prep.source is not set" in told("sft", "super3", "qa", home=tmp_path)[1]


@pytest.mark.parametrize("stage", ["sft", "rl"])
def test_a_store_that_takes_no_files(run, stage: str) -> None:
    closed = "/proc/store"  # not even root can write there
    for words in (("data", "prep", stage), (stage,)):
        command = nemotron("super3", *words, "-c", "tiny", f"run.home={closed}")
        ahead, started = run(*command, "--dry-run", ok=False), run(*command, ok=False)
        assert (ahead.returncode, started.returncode) == (1, 2), started.stderr
        assert f"{closed}: the store cannot be written" in ahead.stdout.partition("# problems")[2]
        assert f"{closed}: the store cannot be written" in started.stderr and "NEMOTRON_HOME" in started.stderr


def test_a_finished_result_that_is_damaged(run, tmp_path: Path) -> None:
    prepare = nemotron("super3", "data", "prep", "rl", "-c", "tiny", "data_prep.synthetic_problems=60")
    run(*prepare)
    folder = tmp_path / "home" / "artifacts" / "super3-rl-data" / "v1"
    rows = max(folder.rglob("*.jsonl"), key=lambda file: file.stat().st_size)
    for file, damaged in ((rows, rows.read_bytes()[::-1]), (folder / "manifest.json", b"")):
        whole = file.read_bytes()
        assert "none: this could run" in run(*prepare, "--dry-run").stdout
        file.write_bytes(damaged)
        assert run(*prepare, ok=False).returncode == 2
        ahead = run(*prepare, "--dry-run", ok=False)
        assert (ahead.returncode, file.name in ahead.stdout.partition("# problems")[2]) == (1, True), ahead.stdout
        file.write_bytes(whole)


def test_nothing_stands_for_an_input_that_the_user_names(made: Path, tmp_path: Path) -> None:
    wrong = [(stage, f"run.{role}={stage}-data:v9" if role == "data" else f"run.{role}=sft:v9")
             for stage in STAGES for role in ("data", "model")]  # fmt: skip
    for stage, asked in [*wrong, ("eval", "run.base=sft:v9")]:
        code, said = told(stage, "super3", "tiny", asked, home=made)
        assert (code, ":v9 in" in said, "has: v1" in said) == (1, True, True), (stage, asked, said)
    mine = tmp_path / "mine.yaml"
    mine.write_text("defaults: [tiny, _self_]\nrun: {model: sft}\n")
    assert "no artifact 'super3-sft-model'" in told("rl", "super3", str(mine), home=tmp_path)[1]
    assert told("sft", "super3", "tiny", "run.data=sft-data", home=tmp_path) == (0, "")  # which would be made


def test_an_engine_that_is_not_here_is_named_with_the_command_that_brings_it(tmp_path: Path) -> None:
    code, said = told("sft", "nano3", "nano3_lora", home=tmp_path)
    assert code == 1
    assert "engine 'megatron_bridge' needs the packages megatron-core ==0.19.2 (not installed)" in said
    assert "nemotron engine install megatron" in said
    assert "the recipe is made for 8 (engine.world_size)" in said
    assert "cannot fine-tune without a GPU" in said


@pytest.mark.parametrize(
    ("stage", "family", "config", "say"),
    [
        ("pretrain", "super3", "nano3", "nemotron nano3 pretrain -c nano3"),
        ("sft", "nano3", "super3", "nemotron super3 sft -c super3"),
        ("eval", "nano3", "super3", "nemotron super3 eval -c super3"),
        ("rl", "super3", "super49b", "nemotron super49b rl -c super49b run.home={home} --allow-experimental"),
    ],
)
def test_a_recipe_of_another_family_is_refused_with_its_own_command(
    stage: str, family: str, config: str, say: str, tmp_path: Path
) -> None:
    assert f"say: {say.format(home=tmp_path)}" in told(stage, family, config, home=tmp_path)[1]


def test_gated_data_of_a_recipe_is_named_until_it_is_prepared(shelf: Path, tmp_path: Path) -> None:
    gated = "nvidia/Nemotron-CC-v2.1 is gated under the NVIDIA Data Agreement for Model Training"

    def is_named(script: str, *words: str) -> bool:
        step = import_module(f"stages.pretrain.{script}").STEP
        start = load(step, Arguments("nano3", (f"run.home={tmp_path}", "run.family=nano3", *words), True, False, None))
        return any(gated in line for line in look_at(start).notes)

    assert is_named("data_prep") and is_named("train")
    assert not is_named("train", f"run.data={shelf / 'data'}")
    assert not is_named("train", "run.data=null")
    assert not is_named("data_prep", "data_prep.source=synthetic")


def test_a_layout_of_another_family_is_refused(tmp_path: Path) -> None:
    said = told("pretrain", "nano3", "nano3", "engine=super3_128gpus", home=tmp_path)[1]
    assert "engine=super3_128gpus: a layout of the family super3, and run.family is nano3" in said


def test_a_later_phase_names_the_command_of_the_first(tmp_path: Path) -> None:
    for name in ("super3_phase2", "super3_long_context"):
        said = told("pretrain", "super3", name, home=tmp_path)[1]
        assert f"make it: nemotron super3 pretrain -c super3 run.home={tmp_path} (or" in said


def test_a_task_that_the_data_will_not_have(tmp_path: Path) -> None:
    assert told("eval", "super3", "tiny", "evaluation.tasks=[sums]", home=tmp_path) == (0, "")
    code, said = told("eval", "super3", "tiny", "evaluation.tasks=[adlr_mmlu]", home=tmp_path)
    assert (code, "no task named 'adlr_mmlu'" in said) == (1, True)


def test_commands_for_what_is_missing_exist(tmp_path: Path) -> None:
    said = told("sft", "nano3", "nano3_lora", home=tmp_path)[1]
    assert f"nemotron nano3 pretrain -c nano3 run.home={tmp_path} (or give run.model=FOLDER)" in said
    assert f"nemotron nano3 data prep sft -c nano3_lora run.home={tmp_path}\n" in f"{said}\n"
    said = told("pretrain", "super3", "local", home=tmp_path)[1]
    assert "data prep pretrain -c local data_prep.source=FILE data_prep.tokenizer.model=FOLDER" in said
    said = told("sft", "super49b", "super49b", home=tmp_path)[1]
    assert "make it" not in said  # no stage makes its model
    assert "give run.model=hf://nvidia/Llama-3_3-Nemotron-Super-49B-v1_5, or a FOLDER" in said


def test_a_small_model_for_a_large_recipe_and_the_tokenizer_of_another(shelf: Path, tmp_path: Path) -> None:
    other = shutil.copytree(shelf / "super3_tiny", tmp_path / "other")
    (other / "tokenizer.json").write_text("{}")
    words = (f"run.data={shelf / 'data'}", f"run.model={other}")
    assert "hidden_size 64 instead of 2688" in told("sft", "nano3", "nano3", *words, home=tmp_path)[1]
    said = told("sft", "super3", "tiny", *words, home=tmp_path)[1]
    assert "the data was made with a different tokenizer than the model's" in said
    unprepared = told("sft", "super3", "tiny", words[1], home=tmp_path)[1]
    assert "the data was made with a different tokenizer than the model's" in unprepared


def test_data_in_the_store_that_has_the_tokenizer_of_the_model_is_named(shelf: Path, tmp_path: Path) -> None:
    """The first and third version have it; the latest one has not."""
    producer = Producer("sft", "data-prep", "0", "0", "", "", None, "data prep sft", {})
    for number in range(1, 5):
        made = shutil.copytree(shelf / "data", tmp_path / "made")
        (made / "rows").write_text(str(number))
        if number in (2, 4):
            (made / "tokenizer" / "tokenizer.json").write_text("{}")
        store, key = Store.open(str(tmp_path)), str(number)
        store.publish(made, name="super3-sft-data", type="SFTDataArtifact", fingerprint=key, producer=producer)
    model = f"run.model={shelf / 'super3_tiny'}"
    said = told("sft", "super3", "tiny", model, "run.data=super3-sft-data:latest", home=tmp_path)[1]
    assert f"different tokenizer than the model's (super3-sft-data:v4, {shelf / 'super3_tiny'})" in said
    assert "take run.data=super3-sft-data:v3, which has the model's, or prepare the data again with" in said


@pytest.mark.parametrize("wrong", ["adapter_config.json", "model.safetensors.index.json", None])
def test_a_model_that_cannot_be_used_is_one_problem(shelf: Path, tmp_path: Path, wrong: str | None) -> None:
    """Not the size of the architecture that the config would have without a model, Super's."""
    given = tmp_path / "given"
    if wrong is not None:
        (shutil.copytree(shelf / "super3_tiny", given) / wrong).write_text("{}")
    found = told("sft", "super3", "local", f"run.data={shelf / 'data'}", f"run.model={given}", home=tmp_path / "home")[
        1
    ]
    assert found.startswith(f"run.model: {given}") and len(found.splitlines()) <= 2, found


def test_tokens_without_embeddings_are_told_before_the_start(shelf: Path, tmp_path: Path) -> None:
    few = shutil.copytree(shelf / "super3_tiny", tmp_path / "few")
    described = json.loads((few / "config.json").read_text())
    (few / "config.json").write_text(json.dumps({**described, "vocab_size": 3}))
    for stage in ("sft", "rl"):
        code, said = told(stage, "super3", "local", f"run.model={few}", home=tmp_path)
        assert code == 1
        assert "its chat template writes '<|im_" in said
        assert "and the model has 3 embeddings" in said
        assert "resize_token_embeddings(" in said


def test_only_models_with_our_mamba_code_are_slow_without_its_kernels(shelf: Path, tmp_path: Path) -> None:
    other = shutil.copytree(shelf / "nano3", tmp_path / "other")
    (other / "config.json").write_text(json.dumps({"model_type": "llama", "vocab_size": 512}))
    for folder, slow in ((shelf / "nano3", True), (other, False)):
        said = told("sft", "super3", "local", f"run.model={folder}", home=tmp_path)[1]
        assert ("run on the pure-torch Mamba reference code" in said) == slow


def test_memory_and_disk_are_estimated_and_said(tmp_path: Path) -> None:
    said = told("pretrain", "super3", "tiny", "model.architecture=nano3", home=tmp_path)[1]
    assert "at least 494.0 GB for weights, gradients and optimizer of 30.9B parameters" in said
    assert "run on the pure-torch Mamba reference code" in said
    machine = {"python": "3.12", "processes": 1, "gpus": None, "memory_gb": 40, "free_disk_gb": 9, "packages": {}}
    (tmp_path / "machine.yaml").write_text(yaml.safe_dump(machine))
    lora = ("engine=transformers_lora", "engine.dtype=bfloat16", "model.architecture=nano3")
    said = told("sft", "super3", "tiny", *lora, home=tmp_path, machine=tmp_path / "machine.yaml")[1]
    assert "at least 61.8 GB for the frozen weights of 30.9B parameters in bfloat16" in said


def test_processes_that_no_memory_holds_are_a_problem(tmp_path: Path) -> None:
    machine = {"processes": 100_000, "memory_gb": 64}
    (tmp_path / "machine.yaml").write_text(yaml.safe_dump(machine))
    # rows of a step are another matter: as many as there are processes
    batch = ("train.micro_batch_size=1", "train.global_batch_size=100000")
    code, said = told("sft", "super3", "tiny", *batch, home=tmp_path, machine=tmp_path / "machine.yaml")
    assert code == 1 and "100000 processes need at least" in said


def test_a_description_is_strict_and_for_dry_runs_only(tmp_path: Path) -> None:
    values = {"python": "3.12", "processes": 1, "gpus": None, "memory_gb": 8, "free_disk_gb": 9, "packages": {}}
    file = tmp_path / "machine.yaml"
    file.write_text(yaml.safe_dump(values))
    assert read_machine(file).memory == 8 * 10**9
    file.write_text(yaml.safe_dump(values | {"gpu": 8}))
    with pytest.raises(UserError, match="unknown key 'gpu'"):
        read_machine(file)
    file.write_text("processes: 010\n")
    with pytest.raises(UserError, match=r"machine\.yaml:1: 010 is the number 8 in YAML"):
        read_machine(file)
    toml = tmp_path / "machine.toml"
    lines = ('python = "3.12"', "processes = 8", "memory_gb = 8", "free_disk_gb = 9", "[gpus]", 'name = "H100"')
    toml.write_text("\n".join([*lines, "count = 8", "memory_gb = 80", "[packages]", 'Megatron_Core = "0.19.2"']))
    assert read_machine(toml).version_of("megatron-core") == "0.19.2"
    assert len(read_machine(toml).gpus) == 8
    with pytest.raises(UserError, match="add --dry-run"):
        parse_arguments("train.py", "", ["-c", "tiny", "--machine", str(file)])


def test_parameters_without_torch_are_those_that_transformers_counts() -> None:
    # counted by transformers on the meta device, with these vocabularies
    counted = {"super3_tiny": (600, 317_192), "nano3": (131_072, 31_577_937_344), "super3": (131_072, 120_668_687_360)}
    for name, (vocabulary, parameters) in counted.items():
        assert parameters_of(load_architecture(name, {}), vocabulary).total == parameters


@pytest.mark.skipif(find_spec("bitsandbytes") is not None, reason="bitsandbytes is here")
def test_an_optimizer_of_a_package_that_is_missing_is_refused(run) -> None:
    said = run(*nemotron("super3", "sft", "-c", "tiny", "engine.optimizer=adamw_8bit", "--dry-run"), ok=False)
    assert said.returncode == 1
    assert "engine.optimizer=adamw_8bit: the package bitsandbytes is not installed" in said.stdout + said.stderr
    assert "bitsandbytes\n" in said.stdout + said.stderr
