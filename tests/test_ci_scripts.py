"""The scripts that CI and a release run, in clones of the last commit: one member alone, every member released."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from support import MEMBERS, ROOT, STAGES, member_folder

pytestmark = pytest.mark.slow


def run(*words: str | Path, folder: Path, **variables: str) -> str:
    answer = subprocess.run(
        words,
        cwd=folder,
        env=os.environ | variables,
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    assert answer.returncode == 0, f"{words}: {answer.stdout[-4000:]}{answer.stderr[-4000:]}"
    return answer.stdout


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    if not (ROOT / ".git").exists():
        pytest.skip("needs the git history, which an archive of the sources lacks")
    run("git", "clone", "--quiet", ROOT, tmp_path / "clone", folder=tmp_path)
    return tmp_path / "clone"


def test_a_stage_alone_needs_no_uv_on_the_path_and_leaves_nothing(clone: Path, tmp_path: Path) -> None:
    """The tests that the script would run are collected and not run: they are those of the two lanes."""
    python = tmp_path / "python"
    run(sys.executable, "-m", "venv", python, folder=tmp_path)
    path = f"{python}/bin:/usr/bin:/bin"
    assert "uv" not in {program.name for folder in path.split(":") for program in Path(folder).iterdir()}
    said = run("ci/stage.sh", "sft", folder=clone, PATH=path, PYTEST_ADDOPTS="--collect-only -n0")
    assert said.endswith("sft: tests, tiny run and wheel are fine\n")
    assert re.search(r"^\d+ tests collected|^\d+/\d+ tests collected", said, flags=re.MULTILINE)
    assert run("git", "status", "--porcelain", "--ignored", folder=clone) == ""


def test_every_member_is_released_and_their_new_versions_work_together(clone: Path, tmp_path: Path) -> None:
    """Stages raise their minor version, shared members only their last number, which every range accepts."""
    environment = {"UV_PROJECT_ENVIRONMENT": str(tmp_path / "environment")}
    for who in ("AUTHOR", "COMMITTER"):
        environment |= {f"GIT_{who}_NAME": "A", f"GIT_{who}_EMAIL": "a@localhost"}
    versions = {}
    for member in MEMBERS:
        part = "minor" if member in STAGES else "patch"
        said = run("uv", "version", "--package", f"nemotron-{member}", "--bump", part, folder=clone, **environment)
        versions[member] = re.findall(r"=> (\S+)", said)[0]
        changes = clone / member_folder(member).relative_to(ROOT) / "CHANGELOG.md"
        notes = changes.read_text(encoding="utf-8")
        heading = f"## Unreleased\n\n## {versions[member]}"
        changes.write_text(notes.replace("## Unreleased", heading, 1), encoding="utf-8")
        run("git", "commit", "--quiet", "--all", "--message", f"Release {member}", folder=clone, **environment)
        said = run("ci/release.sh", member, folder=clone, **environment)
        assert f"built dist/{member} and made the tag {member}-v{versions[member]}" in said
        built = {path.suffix for path in (clone / "dist" / member).glob("nemotron_*")}
        assert built == {".whl", ".gz"}
    tags = run("git", "tag", folder=clone).split()
    assert sorted(tags) == sorted(f"{member}-v{version}" for member, version in versions.items())
    assert len(set(versions.values())) == 2

    programs = tmp_path / "environment" / "bin"
    listed = run("uv", "pip", "list", "--python", programs / "python", folder=clone)
    assert {member: re.findall(rf"^nemotron-{member} +(\S+)", listed, flags=re.MULTILINE) for member in MEMBERS} == {
        member: [version] for member, version in versions.items()
    }
    short = ["-c", "tiny", "train.train_iters=2", "train.eval_interval=2"]
    said = subprocess.run(
        [programs / "torchrun", "stages/sft/train.py", *short],
        cwd=clone,
        env=os.environ | {"NEMOTRON_HOME": str(tmp_path / "home")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "published super3-sft-model:v1" in said.stderr, said.stderr
