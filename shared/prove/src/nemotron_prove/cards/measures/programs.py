"""Commands that are run as a user runs them."""

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

from nemotron_prove.cards.measured import NOT_HERE, CannotRun, Measured
from nemotron_shared.errors import UserError
from nemotron_shared.families import families

TRUST = "--allow-experimental"
NOT_THE_HUB = {
    "pretrain": ("data_prep.source=synthetic", "data_prep.tokenizer.model=tiny"),
    "sft": ("data_prep.source=synthetic", "data_prep.tokenizer.model=tiny"),
    "rl": ("data_prep.source=synthetic",),
    "eval": ("data_prep.source=synthetic",),
}
"""In the place of rows and tokenizers that lie on the hub."""
NOT_FETCHED = "not in the local cache"
OFFLINE = {"HF_HUB_OFFLINE": "1"}
SLURM = """[cluster]
executor = "slurm"
account = "account"
partition = "batch"
nodes = 2
time = "01:00:00"
"""


def nemotron(folder: Path, *words: str, codes: tuple[int, ...] = (0,)) -> str:
    """Run a command in `folder` with a store of its own; what it prints on stdout.

    Raises:
        UserError: it ended with another exit code than those that are right.
    """
    command = [sys.executable, "-m", "nemotron_app.main", *words]
    environment = os.environ | OFFLINE | {"NEMOTRON_HOME": str(folder / "home")}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    if done.returncode not in codes:
        raise UserError(f"{' '.join(words)}: exit code {done.returncode}: {done.stderr.strip()[-300:]}")
    return done.stdout


def data_recipe(family: str, folder: Path) -> Measured:
    """Problems of the family's recipes for data, but for what lies on the hub."""
    problems, recipes = [], 0
    for stage in families()[family].stages:
        if not has_recipe(family, stage):
            continue
        words = (family, "data", "prep", stage, *NOT_THE_HUB[stage], TRUST, "--dry-run", "--json")
        problems += json.loads(nemotron(folder, *words, codes=(0, 1)))["problems"]
        recipes += 1
    if not recipes:
        raise CannotRun(NOT_HERE, "the family has no recipe of its own")
    hub = [problem for problem in problems if NOT_FETCHED in problem]
    notes = [
        f"{recipes} recipes, with synthetic rows and the tiny tokenizer",
        f"{len(hub)} questions to the hub left out",
    ]
    return Measured({"problems": len(problems) - len(hub)}, 0, notes)


def has_recipe(family: str, stage: str) -> bool:
    """Whether a stage has a config that is called as the family."""
    found = find_spec(f"stages.{stage}")
    return bool(found and found.origin) and (Path(str(found.origin)).parent / "config" / f"{family}.yaml").is_file()


def launch_script(family: str, folder: Path) -> Measured:
    """Scripts of Slurm jobs in which bash finds an error; each job is laid out and not started."""
    (folder / "env.toml").write_text(SLURM)
    wrong = 0
    stages = families()[family].stages
    for stage in stages:
        nemotron(folder, family, stage, "-c", "tiny", TRUST, "--stage", "cluster")
    scripts = sorted((folder / "home" / "jobs").glob("*/job.sh"))
    for script in scripts:
        wrong += subprocess.run(["bash", "-n", str(script)], capture_output=True, check=False).returncode != 0
    figures = {"scripts with an error": wrong, "stages without a script": len(stages) - len(scripts)}
    return Measured(figures, 0, [f"{len(scripts)} scripts"])
