"""`nemotron airgap` as it is typed."""

import json
from pathlib import Path

import fsspec
import pytest

from nemotron_app.airgap import _data
from nemotron_app.main import main
from nemotron_shared.errors import UserError


def test_the_plan_of_the_real_lock(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--package", "nemotron-sft", "--extra", "kernels", "--dry-run", "--json"]
    assert main(["airgap", "fetch", str(tmp_path / "folder"), *words]) == 0
    said = capsys.readouterr()
    told = json.loads(said.out)
    kinds = {each["name"]: each["kind"] for each in told["packages"]}
    assert kinds["torch"] == "wheel" and kinds["antlr4-python3-runtime"] == "sdist"
    assert kinds["mamba-ssm"] == kinds["causal-conv1d"] == "compiled"
    assert kinds["nemotron-sft"] == kinds["nemotron-cluster"] == "member"
    assert {"wheel", "uv", "setuptools", "ninja"} <= set(kinds), "what compiling, and a bare machine, need"
    assert told["to_download"] == told["bytes"] > 2e9
    assert "torch" in said.err and "GB" in said.err
    assert not (tmp_path / "folder").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["fetch", "x", "--python", "3.9"], "there are: 3.11, 3.12, 3.13"),
        (["fetch", "x", "--platform", "arm"], "there are: x86_64, aarch64"),
        (["fetch", "x", "--cuda", "12", "--platform", "aarch64"], "torch for CUDA 12"),
        (["fetch", "x", "--package", "nemotron-stf"], "does not have a member nemotron-stf"),
        (["fetch", "x", "--extra", "kernel"], "Extra `kernel` is not defined"),
        (["fetch", "x", "--sources"], "name the extra that asks for it: --extra kernels"),
        (["build", "x"], "no folder of airgap fetch"),
        (["build", "x", "--arch", "sm_90"], "write it as in NVIDIA's tables: --arch 9.0"),
        (["scripts", "nobody"], "no profile 'nobody'"),
    ],
)
def test_what_cannot_be_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("NEMOTRON_ENV_FILE", raising=False)
    assert main(["airgap", *words]) == 2
    assert said in capsys.readouterr().err
    assert [*tmp_path.iterdir()] == []


def test_data_from_elsewhere_is_brought_as_it_is(tmp_path: Path) -> None:
    system = fsspec.filesystem("memory")
    system.pipe({"/airgap/a.jsonl": b"{}\n", "/airgap/deep/b.jsonl.gz": b"\x1f\x8b"})
    found = _data("memory://airgap")
    assert found.place == "data/airgap"
    assert {name: file.bytes for name, file in found.files.items()} == {"a.jsonl": 3, "deep/b.jsonl.gz": 2}
    found.bring(found.missing(tmp_path), tmp_path / found.place)
    assert (tmp_path / "data" / "airgap" / "deep" / "b.jsonl.gz").read_bytes() == b"\x1f\x8b", "still packed"
    assert found.missing(tmp_path) == []
    with pytest.raises(UserError, match="no such file"):
        _data("memory://airgap/none.jsonl")
