"""`airgap build`: an environment from a folder alone, what nvcc compiles, and what is said where that cannot be."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from airgap_lab import Index, serving, source, wheel, workspace
from jobs import write_programs

from nemotron_cluster.airgap import build as builder
from nemotron_cluster.airgap.build import build
from nemotron_cluster.airgap.fetch import MANIFEST, fetch, plan
from nemotron_cluster.airgap.packages import Target, Wanted
from nemotron_shared.machine import memory
from nemotron_shared.machine.machine import Machine
from nemotron_shared.system.errors import UserError

PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
TORCH = """
__version__ = "9.9"
class version: cuda = "13.0"
class cuda: is_available = staticmethod(lambda: False)
class _C: _GLIBCXX_USE_CXX11_ABI = True
"""
NVCC = """#!/usr/bin/env bash
case $1 in
    --version) echo "Cuda compilation tools, release 13.0, V13.0.88" ;;
    -dryrun) echo "#\\$ _HERE_=$(dirname "$0")" >&2 ;;
    *) echo "$MAX_JOBS $CUDA_HOME $*" >> "$NVCC_CALLS" ;;
esac
"""


@pytest.fixture(scope="module")
def fetched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with a member, a wheel, what was built on the way, a torch of one module, and sources to compile."""
    place = tmp_path_factory.mktemp("fetched")
    files = {
        "alpha-1.0-py3-none-any.whl": wheel("alpha", "1.0"),
        "torch-9.9-py3-none-any.whl": wheel("torch", "9.9", TORCH),
        "gamma-1.0.tar.gz": source("gamma", "1.0"),
        "mamba_ssm-1.0.tar.gz": source("mamba-ssm", "1.0", compiled=True),
    }
    with serving(Index(files)) as index, pytest.MonkeyPatch.context() as patch:
        patch.setenv("UV_DEFAULT_INDEX", f"http://{index.host}/simple")
        patch.setenv("UV_CACHE_DIR", str(place / "cache"))
        root = workspace(place / "root", index, ["alpha", "gamma", "torch", "mamba-ssm"], os.environ)
        work = plan(root, place / "folder", Target(PYTHON, "x86_64"), Wanted(("tiny-member",)), [])
        fetch(work, place / "folder")
        assert (place / "folder" / "wheels" / "source" / "mamba-ssm" / "mamba_ssm-1.0.tar.gz").is_file()
    yield place / "folder"


@pytest.fixture(autouse=True)
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An x86-64 machine with an empty cache and without nvcc, and no index to fall back to."""
    monkeypatch.setattr("nemotron_cluster.airgap.build.platform.machine", lambda: "x86_64")
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("UV_DEFAULT_INDEX", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "cuda"))


@pytest.fixture
def nvcc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A program that answers like nvcc and writes down what it was asked to compile."""
    calls = tmp_path / "calls"
    write_programs(tmp_path / "cuda" / "bin", {"nvcc": NVCC})
    monkeypatch.setenv("NVCC_CALLS", str(calls))
    return calls


def test_without_nvcc_the_wheels_are_there_and_what_is_not_is_said(fetched: Path, tmp_path: Path) -> None:
    report = build(fetched, tmp_path / "env")
    assert report.imports["tiny_member"] == "0.3 OK"
    assert report.imports["torch"] == "9.9 OK"
    assert report.imports["CUDA"] == "False (torch is made for 13.0)"
    assert list(report.not_built) == ["mamba-ssm"]
    assert not report.is_whole and not report.broken
    assert any(re.match(r"NOT built: mamba-ssm: nvcc is not in CUDA_HOME=.*set CUDA_HOME", line)
               for line in report.lines())  # fmt: skip
    site = tmp_path / "env" / "lib" / f"python{PYTHON}" / "site-packages"
    assert list(site.glob("__pycache__/alpha.*.pyc")), "compiled to bytecode"
    answer = subprocess.run(
        [tmp_path / "env" / "bin" / "python", "-c", "import alpha, gamma, tiny_member"], check=False
    )
    assert answer.returncode == 0


def test_sources_are_compiled_for_the_chosen_gpus_once(fetched: Path, tmp_path: Path, nvcc: Path) -> None:
    report = build(fetched, tmp_path / "env", ("9.0", "8.0"), jobs=3)
    assert report.built == ["mamba-ssm 1.0"] and report.is_whole
    assert report.imports["mamba_ssm"] == "1.0 OK"
    flags = "-O3 -gencode arch=compute_80,code=sm_80 -gencode arch=compute_90,code=sm_90"
    assert nvcc.read_text() == f"3 {tmp_path / 'cuda'} {flags}\n"
    again = build(fetched, tmp_path / "env", ("9.0", "8.0"))
    assert again.built == ["mamba-ssm 1.0"] and again.is_whole
    build(fetched, tmp_path / "other", ("9.0", "8.0"))
    assert len(nvcc.read_text().splitlines()) == 1, "the wheel that was compiled serves the next environment"
    build(fetched, tmp_path / "elsewhere" / "env", ("7.5",))
    assert nvcc.read_text().splitlines()[1].endswith("-gencode arch=compute_75,code=sm_75")


@pytest.mark.parametrize(
    ("group", "limits", "jobs"),
    [
        ("0::/slurm/job_7/step", {"slurm/job_7/memory.max": 13 << 30, "slurm/memory.max": 60 << 30}, 2),
        ("5:cpu:/x\n4:memory:/slurm/job_7", {"memory/slurm/job_7/memory.limit_in_bytes": 7 << 30}, 1),
        ("0::/slurm/job_7", {"slurm/job_7/memory.max": "max"}, 8),
        ("0::/", {}, 8),
    ],
)
def test_no_more_compilers_than_the_memory_of_the_job_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, group: str, limits: dict[str, object], jobs: int
) -> None:
    for name, limit in limits.items():
        (tmp_path / "groups" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "groups" / name).write_text(f"{limit}\n")
    (tmp_path / "group").write_text(f"{group}\n")
    (tmp_path / "memory").write_text("MemAvailable:  500000000 kB\n")
    monkeypatch.setattr(memory, "GROUPS", tmp_path / "groups")
    monkeypatch.setattr(memory, "OWN_GROUP", tmp_path / "group")
    monkeypatch.setattr(builder, "MEMORY", tmp_path / "memory")
    monkeypatch.setattr(builder.os, "sched_getaffinity", lambda process: range(8))
    assert builder.parallel_jobs() == jobs
    limit = min((value for value in limits.values() if isinstance(value, int)), default=memory.physical_memory())
    assert Machine.here(tmp_path).memory == memory.usable_memory() == min(limit, memory.physical_memory())


def test_an_nvcc_of_another_cuda_than_torch_is_not_used(fetched: Path, tmp_path: Path, nvcc: Path) -> None:
    program = tmp_path / "cuda" / "bin" / "nvcc"
    program.write_text(NVCC.replace("13.0", "12.6"))
    report = build(fetched, tmp_path / "env")
    assert "torch is made for CUDA 13.0, and" in report.not_built["mamba-ssm"]
    assert "fetch with --cuda 12" in report.not_built["mamba-ssm"]
    assert not nvcc.exists()


def test_a_build_that_fails_says_why_and_the_rest_stands(fetched: Path, tmp_path: Path, nvcc: Path) -> None:
    program = tmp_path / "cuda" / "bin" / "nvcc"
    program.write_text(NVCC.replace('*) echo "$MAX', '*) echo "nvcc fatal: Unsupported gpu" >&2; exit 1; echo "$MAX'))
    report = build(fetched, tmp_path / "env", ("9.0",))
    assert "nvcc fatal: Unsupported gpu" in report.not_built["mamba-ssm"]
    assert report.imports["tiny_member"] == "0.3 OK"


def test_a_folder_that_is_not_right_is_refused(fetched: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = shutil.copytree(fetched, tmp_path / "folder")
    (folder / "wheels" / "alpha-1.0-py3-none-any.whl").write_bytes(b"PK")
    with pytest.raises(UserError, match=r"alpha-1\.0-py3-none-any\.whl has 2 bytes instead of"):
        build(folder, tmp_path / "env")
    assert not (tmp_path / "env").exists(), "nothing is made of it"
    (tmp_path / "env").mkdir()
    (tmp_path / "env" / "thesis.tex").write_text("")
    with pytest.raises(UserError, match="is there and no environment"):
        build(fetched, tmp_path / "env")
    monkeypatch.setattr("nemotron_cluster.airgap.build.platform.machine", lambda: "aarch64")
    with pytest.raises(UserError, match="is for x86_64, and this is aarch64"):
        build(fetched, tmp_path / "new")
    (folder / MANIFEST).write_text(json.dumps({"format": 2}))
    with pytest.raises(UserError, match="format: Input should be 1"):
        build(folder, tmp_path / "new")
    with pytest.raises(UserError, match="not a folder of airgap fetch"):
        build(tmp_path, tmp_path / "new")


def test_a_package_that_is_not_importable_is_named(fetched: Path, tmp_path: Path, nvcc: Path) -> None:
    build(fetched, tmp_path / "env", ("9.0",))
    site = tmp_path / "env" / "lib" / f"python{PYTHON}" / "site-packages"
    (site / "tiny_member" / "__init__.py").write_text("import nothing_of_that_name")
    report = build(fetched, tmp_path / "env", ("9.0",))
    assert report.broken == ["tiny_member of tiny-member: ModuleNotFoundError: No module named 'nothing_of_that_name'"]
    assert not report.is_whole
