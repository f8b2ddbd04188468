"""A start composes its config once and checks each step once, however it is started; and engines read every setting."""

import ast
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, get_args

import pytest
from support import STAGES, call_here

from nemotron_app.main import main
from nemotron_data import gym
from nemotron_shared.config import training
from nemotron_shared.config.schema import Extra, Section
from nemotron_shared.engine.spec import Outcome, Task
from nemotron_shared.step import preflight, start, step
from nemotron_shared.step.code import modules_of
from nemotron_shared.step.records import what_and_how
from stages.sft import data_prep, train
from stages.sft.schema import SFTConfig

SMALL = ("-c", "tiny", "data_prep.synthetic_chats=200", "data_prep.workers=1", "train.micro_batch_size=4")
BY_THE_RUN = {
    "checkpoint.keep_last_state", "checkpoint.checkpoint_dir", "logger.log_dir", "logger.wandb_project",
    "logger.wandb_entity", "logger.wandb_name", "logger.mlflow_tracking_uri", "logger.mlflow_experiment",
}  # fmt: skip
"""Settings that the runtime follows itself, whichever engine trains."""


HEAVY = ["torch", "transformers", "trl", "peft", "accelerate", "datasets", "pandas", "pyarrow", "lm_eval"]
"""Libraries that take a moment to import, or seconds."""


def config_alone(task: Task) -> Outcome:
    (task.run.fresh_output() / "config.json").write_text("{}")
    return Outcome(task.run.output)


@pytest.fixture
def counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often a start parses its words, composes, makes a preflight and validates a whole config."""
    monkeypatch.setenv("NEMOTRON_HOME", str(tmp_path))
    monkeypatch.setattr(train, "run_engine", config_alone)
    monkeypatch.setattr(
        "nemotron_app.launch.run_process", lambda command, stdout=None, _=(): call_here(command, stdout)
    )
    found: Counter[str] = Counter()

    def count(module: Any, name: str, what: str) -> None:
        function = getattr(module, name)

        def counting(*args: Any, **kwargs: Any) -> Any:
            found[what] += 1
            return function(*args, **kwargs)

        monkeypatch.setattr(module, name, counting)

    count(step, "parse_arguments", "parsed")
    count(sys.modules["nemotron_shared.config.compose"], "_compose", "composed")
    count(preflight, "find_inputs", "preflights")
    count(preflight, "validate", "validated")
    count(start, "validate", "run sections")
    return found


def test_a_start_parses_composes_validates_and_checks_once(counted: Counter[str]) -> None:
    assert data_prep.main(SMALL) == 0
    assert counted == {"parsed": 1, "composed": 1, "preflights": 1, "validated": 1, "run sections": 1}
    counted.clear()
    assert train.main(("-c", "tiny", "run.data=super3-sft-data:v1")) == 0
    assert counted == {"parsed": 1, "composed": 1, "preflights": 1, "validated": 1, "run sections": 1}


@pytest.mark.parametrize("words", [SMALL, SMALL[:2]], ids=["with settings of data", "without"])
def test_with_missing_data_only_its_preparation_is_checked_besides(
    counted: Counter[str], words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(data_prep, "prepare", config_alone)
    assert train.main(words) == 0
    assert counted == {"parsed": 1, "composed": 1, "preflights": 2, "validated": 2, "run sections": 1}


def test_nemotron_composes_and_the_step_that_it_starts_does_not(counted: Counter[str]) -> None:
    assert main(["super3", "data", "prep", "sft", *SMALL]) == 0
    assert counted == {"parsed": 1, "composed": 1, "preflights": 1, "validated": 1, "run sections": 1}


def test_words_and_the_composed_file_give_the_same_config(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("NEMOTRON_HOME", str(tmp_path))
    monkeypatch.setattr(
        "nemotron_app.launch.run_process", lambda command, stdout=None, _=(): call_here(command, stdout)
    )
    words = ["optimizer.lr=1e-3", "data_prep.sample=7"]
    assert train.main(["-c", "tiny", *words, "run.family=super3", "--dry-run", "--json"]) == 0
    by_words = capsys.readouterr().out
    assert main(["super3", "sft", "-c", "tiny", *words, "--dry-run", "--json"]) == 0
    assert capsys.readouterr().out == by_words


def test_a_dry_run_starts_no_process_and_none_of_the_heavy_libraries(tmp_path: Path) -> None:
    """In a Python of its own, as this one has long imported what other tests needed."""
    program = (
        "import subprocess, sys\n"
        "started = []\n"
        "subprocess.Popen.__init__ = lambda self, command, **options: started.append(command)\n"
        "from nemotron_app.main import main\n"
        "from nemotron_app.launch import dry_run_of\n"
        "from nemotron_app.request import Request\n"
        f"assert main({['super3', 'sft', '-c', 'tiny', '--dry-run']}) == 0\n"
        "asked = Request('super3', ('sft',), 'tiny', ('run.family=super3',), True, True)\n"
        "assert dry_run_of('sft', asked)['produces'] == 'super3-sft-model'\n"
        f"print(started, sorted({{*{HEAVY}}} & sys.modules.keys()), file=sys.stderr)\n"
    )
    environment = os.environ | {"NEMOTRON_HOME": str(tmp_path), "PATH": str(tmp_path)}  # a GPU would be looked for
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr.splitlines()[-1]) == (0, "[] []")
    assert done.stdout.count("# resolved configuration") == 1, "what `dry_run_of` reads is not printed"


def leaves(section: type[Section], above: str = "") -> Iterator[str]:
    for name, field in section.model_fields.items():
        inner = [one for one in (field.annotation, *get_args(field.annotation)) if isinstance(one, type)]
        below = next((one for one in inner if issubclass(one, Section)), None)
        if below is None:
            yield f"{above}{name}"
        else:
            yield from leaves(below, f"{above}{name}.")


def attributes(tree: ast.AST) -> set[str]:
    return {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}


def of_properties() -> dict[str, set[str]]:
    """The settings that stand behind the properties of a training's config, such as `schedule`."""
    tree = ast.parse(Path(str(training.__file__)).read_text())
    found = {node.name: attributes(node) for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    for _ in range(3):  # properties that use others
        found = {name: used.union(*(found.get(one, set()) for one in used)) for name, used in found.items()}
    return found


ENGINES = [(stage, name) for stage in STAGES for name in import_module(f"stages.{stage}.engines").ENGINES.own]


@pytest.mark.parametrize(("stage", "name"), ENGINES)
def test_every_setting_is_read_by_the_engine_or_said_to_have_no_effect(stage: str, name: str) -> None:
    spec = import_module(f"stages.{stage}.train").STEP
    engines = find_spec("nemotron_engines")
    assert engines is not None and engines.origin is not None
    roots = {f"stages.{stage}": spec.directory, "nemotron_engines": Path(engines.origin).parent}
    roots["nemotron_data.gym"] = Path(gym.__path__[0])  # reads the settings of environments
    # these look at settings for every engine, and follow none of them
    onlookers = {"nemotron_engines.checks", "nemotron_engines.defaults", "nemotron_engines.estimate.memory"}
    entry = spec.engines.module_of(name)
    modules = modules_of([entry], roots, None, frozenset({*onlookers, f"stages.{stage}.schema"}))
    assert entry in modules
    read: set[str] = set()
    for module in modules:
        found = find_spec(module)
        assert found is not None and found.origin is not None
        read |= attributes(ast.parse(Path(found.origin).read_text()))
    read = read.union(*(used for name, used in of_properties().items() if name in read))
    sections = [one for one in (*spec.sections, "logger") if one in spec.schema.model_fields and one != "engine"]
    wrapped = {one: spec.schema.model_fields[one].annotation for one in sections}
    keys = [key for one, kind in wrapped.items() for key in leaves((get_args(kind) or (kind,))[0], f"{one}.")]
    unread = {key for key in keys if key.rpartition(".")[2] not in read} - BY_THE_RUN
    assert len(keys) > 10
    unused = spec.engines.load(name).settings.unused
    assert unread <= unused.keys() <= {*keys}, "read it, refuse it, or say why in `unused`"


def test_a_new_setting_with_a_neutral_default_renames_no_result() -> None:
    class Before(Section):
        lr: float

    class After(Before):
        label_smoothing: Extra[float]
        stop_words: Extra[list[str]]
        warm_start: Extra[str | None]

    new = {"label_smoothing": 0.0, "stop_words": [], "warm_start": None}
    before = what_and_how({"lr": 1.0}, Before(lr=1.0))
    assert what_and_how({"lr": 1.0, **new}, After(lr=1.0, **new)) == before
    changed = new | {"label_smoothing": 0.1}
    assert what_and_how({"lr": 1.0, **changed}, After(lr=1.0, **changed))[0] == {"lr": 1.0, "label_smoothing": 0.1}


@pytest.mark.parametrize(("engine", "readers", "rows"), [("transformers", 2, 4), ("megatron_bridge", 2, 1)])
def test_null_of_the_micro_batch_is_all_rows_unless_packed_rows_pass_one_by_one(
    engine: str, readers: int, rows: int
) -> None:
    composed = start.compose(train.STEP.directory / "config", "tiny", [f"engine={engine}"])
    config = preflight.validate(SFTConfig, preflight.resolve(composed.tree, lambda role, name: 1), composed.origins)
    assert (config.rows_per_update, config.micro_rows(readers), config.micro_rows(100)) == (8, rows, 1)
