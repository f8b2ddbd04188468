"""Every stage has the same shape: learning one teaches four."""

import ast
import importlib
from pathlib import Path

import pytest
import yaml
from support import ROOT, STAGES

from nemotron_shared.config.compose import compose, leaf_keys

FILES = (
    "README.md", "CHANGELOG.md", "pyproject.toml", "__init__.py", "schema.py", "data_prep.py", "train.py",
    "config/default.yaml", "config/tiny.yaml", "engines/__init__.py", "tests",
)  # fmt: skip


def folder(stage: str) -> Path:
    return ROOT / "stages" / stage


@pytest.mark.parametrize("stage", STAGES)
def test_a_stage_has_the_files_of_every_stage(stage: str) -> None:
    assert [name for name in FILES if not (folder(stage) / name).exists()] == []


@pytest.mark.parametrize("stage", STAGES)
def test_each_engine_of_the_table_is_a_module_with_its_function(stage: str) -> None:
    table = importlib.import_module(f"stages.{stage}.train").ENGINES
    verb = "evaluate_model" if stage == "eval" else "train"
    assert table
    for module in table.values():
        tree = ast.parse((ROOT / f"{module.replace('.', '/')}.py").read_text())
        assert verb in [node.name for node in tree.body if isinstance(node, ast.FunctionDef)]


@pytest.mark.parametrize("stage", STAGES)
def test_default_yaml_sets_every_key_of_the_schema(stage: str) -> None:
    schema = importlib.import_module(f"stages.{stage}.train").STEP.schema
    composed = set(leaf_keys(compose(folder(stage) / "config", "default", []).tree))
    for section, field in schema.model_fields.items():
        names = getattr(field.annotation, "model_fields", None)
        if names is None:
            assert section in composed
            continue
        for name in names:
            key = f"{section}.{name}"
            assert any(known == key or known.startswith(f"{key}.") for known in composed), key


@pytest.mark.parametrize("stage", STAGES)
def test_every_setting_says_what_it_is(stage: str) -> None:
    """The stage's README names every key with its default."""
    readme = (folder(stage) / "README.md").read_text()
    tree = compose(folder(stage) / "config", "default", []).tree
    assert [key for key in leaf_keys(tree) if f"`{key}`" not in readme] == []


@pytest.mark.parametrize("stage", STAGES)
def test_tiny_changes_values_and_adds_no_key(stage: str) -> None:
    default = set(leaf_keys(compose(folder(stage) / "config", "default", []).tree))
    assert set(leaf_keys(compose(folder(stage) / "config", "tiny", []).tree)) == default


def test_every_shipped_yaml_of_a_stage_was_seen() -> None:
    found = [path for stage in STAGES for path in (folder(stage) / "config").rglob("*.yaml")]
    assert len(found) >= 10
    for path in found:
        assert isinstance(yaml.safe_load(path.read_text()), dict), path


def test_versions_stand_in_the_changelogs() -> None:
    members = [folder(stage) for stage in STAGES] + [ROOT / "shared"]
    for member in members:
        line = next(text for text in (member / "pyproject.toml").read_text().splitlines() if text.startswith("version"))
        version = line.split('"')[1]
        assert f"## {version}" in (member / "CHANGELOG.md").read_text(), member
