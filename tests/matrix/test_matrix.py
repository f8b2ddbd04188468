"""The matrix of models and doors: one fixed model for each door is right, and wrong with a fault planted in it."""

import ast
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from matrix.campaign import BEGIN, END, PAGE, page_lines, read_record
from matrix.doors import DOORS, cells_of
from matrix.planted import FAULTS
from zoo import MATRIX

FOLDER = Path(__file__).parent
ALLOWED = {"gguf", "torch", "transformers", "tokenizers", "safetensors", "numpy"}
FIXED = {door: "nemotron_h_dense" if door == "grpo_exact" else "llama" for door in DOORS}
NOT_INSTALLED = {"export_llama_cpp"}
"""Doors to a program with an environment of its own, whose lane tests them."""


def campaign(record: Path, *words: str) -> dict[str, dict[str, Any]]:
    """Run cells of one type and process, and read their entries by door."""
    found: dict[str, dict[str, Any]] = {}
    for model in dict.fromkeys(FIXED.values()):
        doors = [door for door, chosen in FIXED.items() if chosen == model and door not in NOT_INSTALLED]
        doors = [door for door in doors if door in FAULTS or "--planted" not in words]
        command = [sys.executable, str(FOLDER / "campaign.py"), "--models", model, "--doors", *doors, "--dtypes",
                   "float32", "--processes", "1", "--record", str(record), *words]  # fmt: skip
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
        assert record.is_file(), done.stderr
    for line in record.read_text().splitlines():
        entry = json.loads(line)
        if FIXED[entry["door"]] == entry["model"]:
            found[entry["door"]] = entry
    return found


@pytest.mark.slow
def test_a_model_goes_right_through_each_door(tmp_path: Path) -> None:
    found = campaign(tmp_path / "record.jsonl")
    assert {door: (one["state"], one["said"]) for door, one in found.items()} == dict.fromkeys(
        DOORS.keys() - NOT_INSTALLED, ("right", "")
    )


@pytest.mark.slow
def test_a_fault_in_a_door_turns_its_cell_wrong(tmp_path: Path) -> None:
    found = campaign(tmp_path / "record.jsonl", "--planted")
    assert {door: one["state"] for door, one in found.items()} == dict.fromkeys(FAULTS, "wrong"), found


def test_the_other_program_imports_nothing_of_ours() -> None:
    tree = ast.parse((FOLDER / "reference.py").read_text())
    modules = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    modules |= {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert len(modules) > 8
    outside = {module.partition(".")[0] for module in modules} - sys.stdlib_module_names
    assert outside <= ALLOWED


def test_the_page_is_that_of_the_record() -> None:
    table = PAGE.read_text(encoding="utf-8").split(BEGIN)[1].split(END)[0]
    _, _, made = table.partition("\n\n")
    assert made.splitlines() == page_lines(read_record())
    assert sum(len(list(cells_of(model))) for model in MATRIX) > 700
