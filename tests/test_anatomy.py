"""Every stage has the same shape: learning one teaches four."""

import importlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import UnionType
from typing import Any, Union, get_args, get_origin

import pytest
import yaml
from pydantic import BaseModel
from support import MEMBERS, ROOT, STAGES, member_folder

from nemotron_shared.config.compose import compose
from nemotron_shared.config.references import leaf_keys
from nemotron_shared.stages import STAGES as STAGE_TABLE
from nemotron_shared.step.records import modules_loaded

FILES = (
    "README.md", "CHANGELOG.md", "pyproject.toml", "__init__.py", "schema.py", "data_prep.py", "train.py",
    "config/default.yaml", "config/local.yaml", "config/tiny.yaml", "engines/__init__.py", "tests",
)  # fmt: skip


def folder(stage: str) -> Path:
    return ROOT / "stages" / stage


@pytest.mark.parametrize("stage", STAGES)
def test_a_stage_has_the_files_of_every_stage(stage: str) -> None:
    assert [name for name in FILES if not (folder(stage) / name).exists()] == []


@pytest.mark.parametrize("stage", STAGES)
def test_each_engine_of_the_table_is_a_folder_whose_section_has_its_name(stage: str) -> None:
    table = importlib.import_module(f"stages.{stage}.engines").ENGINES
    assert table.own
    for name in table.own:
        assert (folder(stage) / "engines" / name / "__init__.py").is_file()
        assert get_args(table.load(name).settings.model_fields["name"].annotation) == (name,)


@pytest.mark.parametrize("stage", STAGES)
def test_a_step_makes_what_the_table_of_stages_says(stage: str) -> None:
    for verb, made in (("data_prep", STAGE_TABLE[stage].data), ("train", STAGE_TABLE[stage].result)):
        step = importlib.import_module(f"stages.{stage}.{verb}").STEP
        assert step.makes == made


@pytest.mark.parametrize(("stage", "verb"), [(stage, verb) for stage in STAGES for verb in ("data_prep", "train")])
def test_a_script_says_in_one_line_that_its_packages_are_not_there(stage: str, verb: str) -> None:
    standard_library_alone = ("-I", "-S")
    script = str(folder(stage) / f"{verb}.py")
    command = [sys.executable, *standard_library_alone, script, "-c", "tiny"]
    said = subprocess.run(command, capture_output=True, text=True, check=False)
    assert said.returncode == 2 and said.stdout == ""
    assert said.stderr.splitlines() == [
        f"error: this Python has none of the project's packages; say: uv run python {script}"
    ]


def test_no_engine_is_heavy_before_it_runs() -> None:
    """The schema, `--dry-run` and the checks import every engine that is chosen, and must not wait for its library."""
    heavy = "{'torch', 'transformers', 'trl', 'lm_eval', 'megatron', 'nemo_automodel', 'ray'}"
    code = "\n".join(
        f"import importlib, sys; t = importlib.import_module('stages.{stage}.engines').ENGINES; "
        f"[t.load(name) for name in t.own]; assert not {heavy} & set(sys.modules), set(sys.modules) & {heavy}"
        for stage in STAGES
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def members(annotation: Any) -> dict[str, type[BaseModel]]:
    """The sections that an annotation allows, by the name that chooses each; "" where there is no choice."""
    allowed = get_args(annotation) if get_origin(annotation) in (Union, UnionType) else (annotation,)
    sections = [one for one in allowed if isinstance(one, type) and issubclass(one, BaseModel)]
    if len(allowed) == 1:
        return {"": sections[0]} if sections else {}
    return {name: one for one in sections if "name" in one.model_fields
            for name in get_args(one.model_fields["name"].annotation)}  # fmt: skip


def keys_of(section: type[BaseModel], prefix: str) -> Iterator[str]:
    """Dotted keys of a section and of the sections in it."""
    for name, field in section.model_fields.items():
        inner = members(field.annotation).get("")
        yield from [f"{prefix}.{name}"] if inner is None else keys_of(inner, f"{prefix}.{name}")


def engines(stage: str) -> list[str]:
    """The names that `engine=` takes in a stage, first the one that trains on this machine."""
    table = importlib.import_module(f"stages.{stage}.engines").ENGINES
    first = compose(folder(stage) / "config", "local", []).tree.engine.name
    return [first, *sorted(table.own.keys() - {first})]


def settings_of(stage: str, engine: str) -> type[BaseModel]:
    """The class of an engine's section."""
    return importlib.import_module(f"stages.{stage}.engines").ENGINES.load(engine).settings


ENGINES = [(stage, engine) for stage in STAGES for engine in engines(stage)]


@pytest.mark.parametrize(("stage", "engine"), ENGINES)
def test_yaml_sets_every_key_of_the_schema_whichever_engine_is_chosen(stage: str, engine: str) -> None:
    schema = importlib.import_module(f"stages.{stage}.train").STEP.schema
    known = set(leaf_keys(compose(folder(stage) / "config", "default", [f"engine={engine}"]).tree))
    for name, field in schema.model_fields.items():
        section = settings_of(stage, engine) if name == "engine" else members(field.annotation).get("")
        for key in [name] if section is None else keys_of(section, name):
            assert any(one == key or one.startswith(f"{key}.") for one in known), key


@pytest.mark.parametrize(("stage", "engine"), [pair for pair in ENGINES if pair[1] != engines(pair[0])[0]])
def test_the_page_of_an_engine_says_what_each_of_its_settings_is(stage: str, engine: str) -> None:
    pages = [path for path in (ROOT / "docs" / "engines").glob("*.md") if engine.startswith(path.stem)]
    page = "".join(path.read_text() for path in pages)
    assert [key for key in keys_of(settings_of(stage, engine), "engine") if f"`{key}`" not in page] == []


@pytest.mark.parametrize("stage", STAGES)
def test_every_setting_says_what_it_is(stage: str) -> None:
    """The stage's README names every key with its default."""
    readme = (folder(stage) / "README.md").read_text()
    tree = compose(folder(stage) / "config", "local", []).tree
    assert [key for key in leaf_keys(tree) if f"`{key}`" not in readme] == []


@pytest.mark.parametrize("stage", STAGES)
def test_tiny_changes_values_and_adds_no_key(stage: str) -> None:
    local = set(leaf_keys(compose(folder(stage) / "config", "local", []).tree))
    assert set(leaf_keys(compose(folder(stage) / "config", "tiny", []).tree)) == local


def test_every_shipped_yaml_of_a_stage_was_seen() -> None:
    found = [path for stage in STAGES for path in (folder(stage) / "config").rglob("*.yaml")]
    assert len(found) >= 10
    for path in found:
        assert isinstance(yaml.safe_load(path.read_text()), dict), path


def test_versions_stand_in_the_changelogs() -> None:
    for member in map(member_folder, MEMBERS):
        line = next(text for text in (member / "pyproject.toml").read_text().splitlines() if text.startswith("version"))
        version = line.split('"')[1]
        notes = (member / "CHANGELOG.md").read_text()
        assert f"## {version}" in notes or "## Unreleased" in notes, member


@pytest.mark.parametrize("stage", STAGES)
def test_what_only_estimates_or_shows_is_no_part_of_what_makes_a_result(stage: str, tmp_path: Path) -> None:
    step = importlib.import_module(f"stages.{stage}.train").STEP
    engines = [
        entry.partition(":")[0] for entry in importlib.import_module(f"stages.{stage}.engines").ENGINES.own.values()
    ]
    loaded = modules_loaded([step.module, *engines], step.prepare.module, folder(stage), tmp_path)
    assert f"stages.{stage}.train" in loaded and len(loaded) > 30
    shows = ("estimate", "console", "heartbeat", "progress", "layouts")
    assert [name for name in loaded if set(shows) & set(name.split("."))] == []
