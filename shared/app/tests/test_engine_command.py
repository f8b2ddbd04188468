"""`nemotron engine`: what it asks of uv, and what it refuses. A script stands in for uv and for the Python it finds."""

import os
import shutil
import sys
import tomllib
from pathlib import Path

import pytest

from nemotron_app.main import main

FAKE_UV = """#!/bin/sh
echo "$UV_PROJECT_ENVIRONMENT $*" >> {log}
case $1 in
python) echo {python} ;;
sync|venv)
    mkdir -p $UV_PROJECT_ENVIRONMENT/bin $UV_PROJECT_ENVIRONMENT/lib/python3.12/site-packages
    cp -r {packages}/. $UV_PROJECT_ENVIRONMENT/lib/python3.12/site-packages
    printf '#!/bin/sh\\nPYTHONPATH=%s exec {real} "$@"\\n' \\
        $UV_PROJECT_ENVIRONMENT/lib/python3.12/site-packages > $UV_PROJECT_ENVIRONMENT/bin/python
    chmod +x $UV_PROJECT_ENVIRONMENT/bin/python ;;
esac
exit {code}
"""


class Uv:
    """The stand-in: `asked` is what it was told, `packages` is a folder of what it installs."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.packages = folder, folder / "packages"
        self.packages.mkdir()
        self.python = script(folder / "python3.12", "#!/bin/sh\necho 3.12\n")
        self.write()

    def write(self, code: int = 0) -> None:
        names = {"log": self.folder / "log", "packages": self.packages, "python": self.python, "real": sys.executable}
        script(self.folder / "uv", FAKE_UV.format(**names, code=code))

    def offers(self, name: str, module: str, version: str) -> None:
        """Have a package installed by the next `uv sync`."""
        information = self.packages / f"{name.replace('-', '_')}-{version}.dist-info"
        information.mkdir()
        (information / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        (self.packages / module.replace(".", "/")).mkdir(parents=True)

    @property
    def asked(self) -> list[str]:
        return (self.folder / "log").read_text().splitlines()


def script(path: Path, text: str) -> Path:
    path.write_text(text)
    path.chmod(0o755)
    return path


@pytest.fixture
def uv(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Uv:
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("NEMOTRON_ENGINES", str(tmp_path / "engines"))
    monkeypatch.delenv("UV_PYTHON", raising=False)
    monkeypatch.setattr("platform.system", lambda: "Linux")
    return Uv(tmp_path / "bin")


def test_an_environment_is_made_from_the_lock_and_then_listed(
    uv: Uv, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    uv.offers("megatron-core", "megatron.core", "0.19.2")
    uv.offers("megatron-bridge", "megatron.bridge", "0.6.2")
    assert main(["engine", "install", "megatron_bridge"]) == 0
    folder = tmp_path / "engines" / "megatron"
    made = next(line for line in uv.asked if " sync " in line)
    assert made.startswith(f"{folder} sync --frozen")
    assert "--extra megatron" in made
    assert f"--python {uv.python}" in made or sys.version_info[:2] == (3, 12)
    assert "installed: megatron-core 0.19.2, megatron-bridge 0.6.2" in capsys.readouterr().err


def test_an_environment_with_a_list_of_its_own_is_made_from_that(
    uv: Uv, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("nemotron_app.engines.repository", lambda: None)  # it needs no lock
    for name, module in (("nemo-run", "nemo_run"), ("leptonai", "leptonai"), ("kubernetes", "kubernetes")):
        uv.offers(name, module, "1.0")
    assert main(["engine", "install", "nemo_run"]) == 0
    folder = tmp_path / "engines" / "nemo_run"
    made, filled = [line.removeprefix(f"{folder} ") for line in uv.asked if "sync" not in line][-2:]
    assert made.startswith("venv --quiet --allow-existing") and made.endswith(str(folder))
    assert filled.startswith(f"pip install --quiet --python {folder} --requirements /")
    assert filled.endswith("nemo_run.txt")
    assert main(["engine"]) == 0
    listed = capsys.readouterr().out
    assert next(line for line in listed.splitlines() if line.startswith("nemo_run ")).split()[1] == "jobs"


def test_an_environment_of_a_python_that_it_no_longer_has_is_made_anew(uv: Uv, tmp_path: Path) -> None:
    uv.offers("nemo-gym", "nemo_gym", "0.7.0")
    script(uv.python, "#!/bin/sh\necho 3.13\n")
    folder = tmp_path / "engines" / "nemo_gym"
    for former, option in (("3.12", "--clear"), ("3.13", "--allow-existing")):
        shutil.rmtree(folder, ignore_errors=True)
        (folder / "lib" / f"python{former}").mkdir(parents=True)
        assert main(["engine", "install", "nemo_gym"]) == 0
        made, filled = [line for line in uv.asked if " venv " in line or " pip " in line][-2:]
        assert f" venv --quiet {option} --python " in made
        assert f" pip install --quiet --python {folder} --python-version=3.13.14 --requirements /" in filled


def test_vllm_for_cpus_has_the_torch_of_the_lock() -> None:
    root = Path(__file__).parents[3]
    locked = {f"{one['name']}=={one['version']}" for one in tomllib.loads((root / "uv.lock").read_text())["package"]}
    pinned = (root / "shared/app/src/nemotron_app/vllm_cpu.txt").read_text().splitlines()
    shared = [line for line in pinned if line.startswith(("torch==", "nvidia-"))]
    assert len(shared) == 15 and set(shared) <= locked


def test_modelopt_is_pinned_as_in_the_lock() -> None:
    root = Path(__file__).parents[3]
    locked = {f"{one['name']}=={one['version']}" for one in tomllib.loads((root / "uv.lock").read_text())["package"]}
    pinned = (root / "shared/app/src/nemotron_app/modelopt.txt").read_text().splitlines()
    wanted = [line.partition(" ;")[0] for line in pinned if not line.startswith("#")]
    assert "nvidia-modelopt==0.47.0" in wanted and set(wanted) <= locked


def test_what_uv_silently_leaves_out_is_an_error(uv: Uv, capsys: pytest.CaptureFixture[str]) -> None:
    uv.offers("megatron-core", "megatron.core", "0.19.2")
    assert main(["engine", "install", "megatron"]) == 2
    assert "Python cannot import megatron.bridge" in capsys.readouterr().err


def test_a_failure_of_uv_is_one_error(uv: Uv, capsys: pytest.CaptureFixture[str]) -> None:
    uv.write(code=3)
    assert main(["engine", "install", "automodel"]) == 2
    said = capsys.readouterr().err
    assert said.count("error:") == 1
    assert "exit code 3" in said


def test_a_checkout_is_where_the_environment_imports_from(
    uv: Uv, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, module in (("ray", "ray"), ("tensordict", "tensordict"), ("math-verify", "math_verify")):
        uv.offers(name, module, "1.0")
    assert main(["engine", "install", "nemo_rl"]) == 2
    assert "--from CHECKOUT" in capsys.readouterr().err
    assert main(["engine", "install", "nemo_rl", "--from", str(tmp_path)]) == 2
    assert "has no folder nemo_rl" in capsys.readouterr().err
    (tmp_path / "nemo-rl" / "nemo_rl").mkdir(parents=True)
    # the stand-in reads no .pth file, as a Python does in its own site-packages
    (uv.packages / "nemo_rl").mkdir()
    assert main(["engine", "install", "nemo_rl", "--from", str(tmp_path / "nemo-rl")]) == 0
    site = tmp_path / "engines" / "nemo_rl" / "lib" / "python3.12" / "site-packages"
    assert (site / "nemotron_engine.pth").read_text() == f"{tmp_path / 'nemo-rl'}\n"
    assert any("transformers==5.8.1" in line for line in uv.asked)
    capsys.readouterr()
    assert main(["engine"]) == 0
    assert f"{tmp_path / 'engines' / 'nemo_rl'}: ray 1.0" in capsys.readouterr().out
    (tmp_path / "nemo-rl").rename(tmp_path / "elsewhere")
    assert main(["engine"]) == 0
    remedy = "nemotron engine install nemo_rl --from CHECKOUT"
    assert f"takes code from {tmp_path / 'nemo-rl'}, which is gone: {remedy}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "system", "python", "message"),
    [
        ("automodl", "Linux", None, "did you mean 'automodel'?"),
        ("automodel", "Darwin", None, "exist for Python 3.11 to 3.13, Linux only; this is Darwin"),
        ("megatron", "Linux", "3.11", "needs Python 3.12, Linux; UV_PYTHON=3.11 is Python 3.11"),
    ],
)
def test_what_could_not_work_is_refused_before_anything_is_made(
    uv: Uv, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    name: str, system: str, python: str | None, message: str,
) -> None:  # fmt: skip
    monkeypatch.setattr("platform.system", lambda: system)
    if python is not None:
        monkeypatch.setenv("UV_PYTHON", python)
        script(uv.python, f"#!/bin/sh\necho {python}\n")
    assert main(["engine", "install", name]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "engines").exists()


def test_an_installed_package_without_a_lock_says_what_to_do(
    uv: Uv, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("nemotron_app.engines.repository", lambda: None)
    assert main(["engine", "install", "automodel"]) == 2
    said = capsys.readouterr().err
    assert "clone the repository" in said
    assert "NEMOTRON_ENGINES" in said
