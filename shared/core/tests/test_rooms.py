"""The import picture of the core, and the folders whose code is no part of a result."""

import ast
import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from support import ROOT, SHORT, STAGES

from nemotron_shared.artifacts import Store, parse_reference
from nemotron_shared.step.code import NEVER_COUNTS, modules_of

CORE = ROOT / "shared" / "core" / "src" / "nemotron_shared"


def counting(stage: str, core: Path = CORE) -> dict[str, str]:
    """Digests of all modules that count for a stage's training or data, with any engine of its own."""
    folder = ROOT / "stages" / stage
    roots = {"nemotron_shared": core, f"stages.{stage}": folder}
    roots |= {name: Path(find_spec(name).origin).parent for name in ("nemotron_data", "nemotron_engines")}
    engines = [f"stages.{stage}.engines.{path.parent.name}" for path in folder.glob("engines/*/__init__.py")]
    assert engines
    return modules_of([f"stages.{stage}.data_prep", f"stages.{stage}.train", *engines], roots, without=NEVER_COUNTS)


def changed(core: Path, *, counts: bool) -> list[str]:
    """Add a statement to each module of a copy of the core that counts, or that does not; returns their names."""
    names = {name for stage in STAGES for name in counting(stage, core)}
    changed = []
    for path in sorted(core.rglob("*.py")):
        name = ".".join(path.relative_to(core.parent).with_suffix("").parts).removesuffix(".__init__")
        if (name in names) is counts:
            path.write_text(f"{path.read_text()}\nANOTHER_DIGEST = True\n")
            changed.append(name)
    return changed


def test_a_change_in_a_folder_that_never_counts_changes_no_identity(tmp_path: Path) -> None:
    shutil.copytree(CORE, tmp_path / "nemotron_shared")
    before = {stage: counting(stage) for stage in STAGES}
    names = changed(tmp_path / "nemotron_shared", counts=False)
    for room in ("step", "system", "tracking", "machine"):
        modules = {f"nemotron_shared.{room}.{path.stem}" for path in (CORE / room).glob("[!_]*.py")}
        assert modules and modules <= set(names)
    assert {stage: counting(stage, tmp_path / "nemotron_shared") for stage in STAGES} == before
    changed(tmp_path / "nemotron_shared", counts=True)
    after = {stage: counting(stage, tmp_path / "nemotron_shared") for stage in STAGES}
    assert all(after[stage] != before[stage] for stage in STAGES)


@pytest.mark.slow
def test_a_change_in_a_folder_that_never_counts_changes_no_bytes(tmp_path: Path) -> None:
    """Data and weights are the same, in another store and by force in the same one; without force they are reused."""
    shutil.copytree(CORE, tmp_path / "code" / "nemotron_shared")
    assert len(changed(tmp_path / "code" / "nemotron_shared", counts=False)) > 30

    def made(home: str, *words: str, code: str) -> tuple[str, dict[str, str]]:
        command = [sys.executable, "-m", "stages.sft.train", "-c", "tiny", *SHORT["sft"], *words]
        variables = os.environ | {"NEMOTRON_HOME": home, "PYTHONPATH": code}
        done = subprocess.run(command, cwd=tmp_path, env=variables, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        artifacts = [
            Store.open(str(tmp_path / home)).resolve(parse_reference(f"super3-sft-{kind}"))
            for kind in ("data", "model")
        ]
        files = {path: entry.sha256 for one in artifacts for path, entry in one.manifest.files.items()}
        return done.stderr, {
            path: digest for path, digest in files.items() if path.endswith((".safetensors", ".parquet"))
        }

    elsewhere = f"{tmp_path / 'code'}{os.pathsep}{ROOT}"
    where = [sys.executable, "-c", "import nemotron_shared.step.step as step; print(step.ANOTHER_DIGEST)"]
    assert subprocess.run(where, env=os.environ | {"PYTHONPATH": elsewhere}, capture_output=True, check=True).stdout
    _, before = made("one", code=str(ROOT))
    assert len(before) >= 3
    assert made("other", code=elsewhere)[1] == before
    said, again = made("one", code=elsewhere)
    assert again == before and "unchanged: using super3-sft-model:v1" in said
    said, forced = made("one", "--force", code=elsewhere)
    assert forced == before and "unchanged" not in said


def test_each_folder_says_its_idea_in_one_sentence() -> None:
    folders = sorted(path.parent for path in CORE.glob("*/__init__.py"))
    assert len(folders) >= 8
    for folder in folders:
        said = (ast.get_docstring(ast.parse((folder / "__init__.py").read_text())) or "").split("\n\n")[0]
        assert said.count(".") == 1 and said.endswith(".") and " and " not in said, folder


def test_the_core_stands_on_six_floors_of_folders_and_nine_of_modules() -> None:
    command = [sys.executable, str(ROOT / "ci" / "rooms.py")]
    folders, modules = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split("\n")[0:3:2]
    floors, arrows = (int(part.split()[-1]) for part in folders.split(",")[1:])
    assert floors <= 6 and arrows <= 40
    assert modules.startswith("modules: ") and int(modules.split(",")[1].split()[-1]) <= 9


def test_a_circle_of_imports_is_named(tmp_path: Path) -> None:
    package = tmp_path / "shared" / "core" / "src" / "ours"
    package.mkdir(parents=True)
    for name, text in {"__init__": "", "one": "from ours import two\n", "two": "import ours.one\n"}.items():
        (package / f"{name}.py").write_text(text)
    command = [sys.executable, str(ROOT / "ci" / "rooms.py"), "--tree", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "a circle: one -> two -> one" in done.stderr
