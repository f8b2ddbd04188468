"""`nemotron airgap` as it is typed."""

import json
from pathlib import Path

import fsspec
import pytest

from nemotron_app.airgap import _data
from nemotron_app.main import main
from nemotron_shared.system.errors import UserError


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
        (["build", "x"], "not a folder of airgap fetch"),
        (["build", "x", "--arch", "sm_90"], "write it as in NVIDIA's tables: --arch 9.0"),
        (["scripts", "nobody"], "profile 'nobody' needs env.toml"),
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


PROFILE = """[site]
executor = "slurm"
gpus_per_node = 4
setup_lines = ["module load {cuda}"]
"""


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a person whose env.toml has the profile `site`."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("NEMOTRON_ENV_FILE", raising=False)
    (tmp_path / "env.toml").write_text(PROFILE.format(cuda="cuda"))
    return tmp_path


def test_scripts_fetch_for_the_cuda_that_the_profile_loads(site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def fetched(cuda: str, *words: str) -> str:
        """The options of the fetch; what is said where there are none."""
        (site / "env.toml").write_text(PROFILE.format(cuda=cuda))
        code = main(["airgap", "scripts", "site", *words])
        said = capsys.readouterr().err
        text = Path("scripts/setup_environment.sh").read_text() if code == 0 else ""
        return next((line for line in text.splitlines() if line.startswith("fetch=")), said)

    assert fetched("cuda/12.6").endswith("--cuda 12)")
    assert fetched("cuda/13.0").endswith("--cuda 13)")
    assert fetched("cuda").endswith("--cuda 13)")
    assert fetched("cuda", "--cuda", "12").endswith("--cuda 12)")
    assert "the profile loads CUDA 12.6 (env.toml:4 [site], setup_lines)" in fetched("cuda/12.6", "--cuda", "13")
    assert "there is torch for CUDA 12 and 13 only" in fetched("cuda/11.8")
    assert "x86_64 only" in fetched("cuda/12.6", "--platform", "aarch64")


@pytest.mark.parametrize(
    ("words", "image"),
    [
        (["-c", "nano3"], "nvcr.io#nvidia/nemo:25.11.nemotron_3_nano"),
        (["-c", "tiny", "engine=automodel"], None),
        (["--container", "rl/nano3"], "nvcr.io#nvidia/nemo-rl:v0.4.0.nemotron_3_nano"),
        (["--container", "docker://quay.io/org/image:1"], "quay.io#org/image:1"),
        (["--container", "/lustre/image.sqsh"], None),
    ],
)
def test_the_image_of_the_training_or_the_one_that_is_named_is_imported(
    site: Path, words: list[str], image: str | None
) -> None:
    assert main(["airgap", "scripts", "site", *words]) == 0
    script = site / "scripts" / "pull_container.slurm"
    assert script.exists() == (image is not None)
    assert image is None or f"image='docker://{image}'" in script.read_text()


def test_the_scripts_train_under_the_name_of_the_family(site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["nano3", "airgap", "scripts", "site", "-c", "tiny", "engine=automodel"]) == 0
    for name in ("train_automodel.slurm", "test_training_simple.slurm"):
        assert "(-c tiny engine=automodel run.family=nano3)" in (site / "scripts" / name).read_text()
    assert main(["airgap", "scripts", "site", "--family", "nano"]) == 2
    assert "did you mean 'nano3'?" in capsys.readouterr().err


@pytest.mark.usefixtures("site")
def test_a_recipe_without_a_container_has_none_to_import(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["airgap", "scripts", "site", "--container", "rl/tiny"]) == 2
    assert "--container rl/tiny: this recipe names no container" in capsys.readouterr().err


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
