"""A dry run knows which tracker's package a machine does not have, and what another program is told of trackers."""

from importlib.metadata import distributions
from pathlib import Path

import pytest
import yaml
from support import call_here

from nemotron_app.main import main

INSTALLED = {one.metadata["Name"]: one.version for one in distributions()}
MACHINE = {"python": "3.12", "processes": 1, "memory_gb": 64}


@pytest.mark.parametrize(
    ("setting", "package"),
    [("logger.wandb_project=mine", "wandb"), ("logger.mlflow_tracking_uri=http://there:5000", "mlflow-skinny")],
)
def test_a_package_that_is_missing_is_found_before_the_start(
    setting: str, package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("NEMOTRON_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("nemotron_app.launch.run_process", call_here)
    for known in ({}, {package: "1.0"}):
        others = {name: version for name, version in INSTALLED.items() if name not in {"wandb", "mlflow", package}}
        content = MACHINE | {"packages": others | known}
        (tmp_path / "machine.yaml").write_text(yaml.safe_dump(content))
        code = main(["super3", "sft", "-c", "tiny", "--dry-run", "--machine", "machine.yaml", setting])
        said = capsys.readouterr()
        text = said.out + said.err
        key = setting.partition("=")[0]
        assert (f"it needs the package '{package}'" in text) == (not known), text
        assert ("uv pip install --python" in text) == (not known)
        assert code == (0 if known else 1), text
        assert key in text
