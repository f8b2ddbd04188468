"""Secrets in every place where people put them, searched in everything that comes out."""

import re
from pathlib import Path

import pytest
from support import nemotron, short

from conftest import Run

# Each would be recognised anywhere: "Planted" and the place, but for a key that has W&B's form.
IN_SHELL = {
    "HF_TOKEN": "hf_" + "PlantedHubTokenAbcdefghijklmnopqrs",
    "WANDB_API_KEY": "91a27ed0" * 5,
    "AWS_SECRET_ACCESS_KEY": "/PlantedAws+0123456789",
    "DOOR_PASSWORD": "PlantedDoor'$(x)%&",
    "TEAM_OF_MINE": "PlantedTeamReadByTheConfig",
}
PROXY = "PlantedProxy1"
IN_URL, IN_YAML, IN_PROFILE, TYPED = "PlantedInUrl2", "PlantedInYaml3", "PlantedInProfile4", "PlantedTyped5"
PLANTED = (*IN_SHELL.values(), PROXY, IN_URL, IN_YAML, IN_PROFILE, TYPED)
OFFLINE = {
    "WANDB_MODE": "offline", "HF_HUB_OFFLINE": "1", "HTTPS_PROXY": f"http://me:{PROXY}@127.0.0.1:9", "NO_PROXY": "*",
}  # fmt: skip
OWN = f"""
defaults:
  - tiny
  - _self_
logger:
  wandb_entity: ${{oc.env:TEAM_OF_MINE}}
  mlflow_experiment: "s3://me:{IN_YAML}@bucket"
"""
CLUSTER = """
[cluster]
executor = "slurm"
account = "a"
partition = "p"
secrets = ["HF_TOKEN", "WANDB_API_KEY", "DOOR_PASSWORD"]
"""


class Desk:
    """Where a person works: secrets in the shell, a config and an env.toml of their own."""

    def __init__(self, run: Run, folder: Path) -> None:
        self._run, self.folder, self.said = run, folder, list[str]()
        self.own, self.profiles = folder / "own.yaml", folder / "env.toml"
        self.own.write_text(OWN)
        self.profiles.write_text(CLUSTER)

    def __call__(self, *words: str, code: int = 0) -> str:
        done = self._run(*nemotron(*words), ok=False, env=IN_SHELL | OFFLINE)
        said = done.stdout + done.stderr
        assert done.returncode == code and "Traceback" not in said, f"{words}: {done.returncode}\n{said}"
        self.said.append(said)
        return said

    def leaks(self) -> list[str]:
        """Where a secret stands: in files of any form, and in what was said."""
        files = [path for path in self.folder.rglob("*") if path.is_file() and path not in (self.own, self.profiles)]
        places = {str(path.relative_to(self.folder)): path.read_bytes() for path in files if not path.is_symlink()}
        places |= {f"answer {number}": text.encode() for number, text in enumerate(self.said)}
        assert len(places) > len(self.said)
        return [name for name, content in places.items() if any(secret.encode() in content for secret in PLANTED)]


@pytest.fixture
def desk(run: Run, tmp_path: Path) -> Desk:
    return Desk(run, tmp_path)


def test_preparing_data_and_what_is_refused_show_none(desk: Desk) -> None:
    desk("super3", "data", "prep", "sft", "-c", "own.yaml", "data_prep.synthetic_chats=60")
    for word in (
        f"data_prep.source=https://me:{IN_URL}@127.0.0.1:9/x.jsonl",
        f"data_prep.source=s3://me:{IN_URL}@bucket/x.jsonl",
        f"data_prep.source=missing.jsonl?token={TYPED}",
        f"data_prep.api_key={TYPED}",
    ):
        desk("super3", "data", "prep", "sft", "-c", "tiny", word, code=2)
    desk("artifacts", "show", "sft-data", "--json")
    assert desk.leaks() == []


PROFILES = [
    f'[cluster.env_vars]\nDB_URL = "postgres://me:{IN_PROFILE}@host/db"',
    f'setup_lines = ["export X_TOKEN={IN_PROFILE}"]',
    f'container_image = "docker://me:{IN_PROFILE}@registry.example.org/x:1"',
    f'extra_directives = ["--comment=token={IN_PROFILE}"]',
    f'[cluster.set]\n"logger.mlflow_tracking_uri" = "http://me:{IN_PROFILE}@host"',
]


def test_jobs_show_none_but_in_the_file_for_you_alone(desk: Desk) -> None:
    words = ("super3", "data", "prep", "sft", "-c", "own.yaml")
    assert "HF_TOKEN" in desk(*words, "--dry-run", "--run", "cluster", "--json")
    desk(*words, "--stage", "cluster")
    given = sorted(desk.leaks())
    assert [name.split("/", 3)[3] for name in given] == ["own/own.yaml", "secrets/env"]  # a config of yours as it is
    job, laid_out = (desk.folder / given[1]).parents[1], desk.folder / given[1]
    assert (job.stat().st_mode & 0o777, laid_out.stat().st_mode & 0o777) == (0o700, 0o600)
    for more in PROFILES:
        desk.profiles.write_text(CLUSTER + more + "\n")
        said = desk(*words, "--dry-run", "--run", "cluster", code=2)
        assert re.search(r"env\.toml:\d+ \[cluster\]: \S+ holds a secret", said), more
    desk.profiles.write_text(CLUSTER)
    desk.own.write_text(OWN + "run:\n  env:\n    env_vars: {MODE: '${oc.env:TEAM_OF_MINE}'}\n")
    assert "reads from a variable" in desk(*words, "--dry-run", "--run", "cluster", code=2)
    assert sorted(desk.leaks()) == given


@pytest.mark.slow
def test_trainings_with_trackers_evaluations_and_reports_show_none(desk: Desk) -> None:
    """About 60 s of CPU time."""
    desk.own.write_text(OWN.partition("  mlflow_experiment")[0])  # a name that MLflow has to be given
    database = f"sqlite:///{desk.folder}/mlflow.db"
    trackers = ("logger.wandb_project=p", f"logger.mlflow_tracking_uri={database}", "logger.tensorboard=true")
    train = ("super3", "sft", "-c", "own.yaml", *short("sft")[2:], *trackers)
    desk(*train)
    assert list(desk.folder.glob("home/runs/*/wandb/offline-run-*")) and (desk.folder / "mlflow.db").is_file()
    desk(*train, "optimizer.lr=1e30", "run.seed=5", code=2)
    refused = f"logger.mlflow_tracking_uri=http://me:{IN_URL}@127.0.0.1:9"
    desk("super3", "sft", *short("sft"), "run.seed=6", refused, code=2)
    desk("super3", "eval", *short("eval"))
    desk("report", "--out", "report.html")
    for words in (("artifacts",), ("artifacts", "lineage", "sft"), ("runs", "--all")):
        desk(*words, "--json")
    # the entity is where W&B is to keep the run, so its own files name it
    assert [name for name in desk.leaks() if "/wandb/" not in name] == []
    kept = b"".join(file.read_bytes() for file in desk.folder.glob("home/runs/*/wandb/**/*") if file.is_file())
    assert [value for value in PLANTED if value.encode() in kept] == [IN_SHELL["TEAM_OF_MINE"]]
