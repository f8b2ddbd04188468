"""The commands that messages advise, run: dry where one would train, with `--help` where it needs a network.

That messages advise commands like these and no others is checked where the messages are made: `advised.py`.
"""

import importlib
import json
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from advised import commands
from lanes import slow
from support import ROOT, STAGES, call_here

from nemotron_app.finetune.command import USE
from nemotron_app.main import main
from nemotron_data.tokenizers.tiny import save_tokenizer
from nemotron_shared.artifacts import Producer, Store
from nemotron_shared.artifacts.verified import forced_command
from nemotron_shared.families import families
from nemotron_shared.machine.environments import ENVIRONMENTS
from nemotron_shared.system.errors import UserError, how_to_add

STOPPED, OTHER = "super3-sft-model-0123456789ab", "super3-rl-model-0123456789ab"
UNRUN = {
    ("runs", "stop"), ("jobs", "logs"), ("jobs", "cancel"), ("airgap", "build"),
    ("artifacts", "replay"),
}  # fmt: skip
"""Commands that only a running process could obey, and long ones: only their help is asked for."""
PACKAGES = ("bitsandbytes", "datasets huggingface-hub", "gcsfs", "huggingface-hub", "ray", "s3fs", "wandb")
COMMANDS = f"""
nemotron --help
nemotron airgap build /lustre/airgap
nemotron airgap build FOLDER
nemotron artifacts gc --yes
nemotron artifacts lineage super3-rl-model:v1
nemotron artifacts list
nemotron artifacts replay super3-sft-model:v1 --keep
nemotron artifacts rm super3-rl-data:v1
nemotron artifacts verify super3-sft-model:v1
nemotron config explain engine.peft
nemotron config explain grpo.temperature --stage rl
nemotron config show sft/local
nemotron doctor
nemotron engine list
nemotron jobs
nemotron jobs --all
nemotron jobs cancel 4711
nemotron jobs logs 4711
nemotron jobs logs 4711 --follow
nemotron model import ./FOLDER
nemotron model import hf://org/name
nemotron model import hf://org/name@v2
nemotron new my_tiny --from sft/tiny
nemotron report
nemotron report --compare {STOPPED} {OTHER}
nemotron report --family super3
nemotron report super3-eval-results:v1
nemotron runs
nemotron runs --all
nemotron runs --json
nemotron runs rm {STOPPED}
nemotron runs stop {STOPPED}
nemotron super3 data prep eval -c tiny
nemotron super3 data prep pretrain -c local data_prep.source=FILE.jsonl data_prep.tokenizer.model=./FOLDER
nemotron super3 data prep rl -c local data_prep.source=FILE.jsonl
nemotron super3 data prep sft -c mine.yaml
nemotron super3 eval -c tiny
nemotron super3 eval -c tiny -t sums
nemotron super3 pipeline -c tiny
nemotron super3 pretrain -c tiny
nemotron super3 pretrain -c tiny --force
nemotron super3 sft -c local
nemotron super3 sft -c mine.yaml
nemotron super3 sft -c mine.yaml --dry-run
nemotron super3 sft -c tiny
nemotron super3 sft -c tiny --force
nemotron super49b pipeline -c tiny --allow-experimental
python -m nltk.downloader punkt_tab
python3 -m pip install uv
uv sync --all-packages
"""
ALL = [
    *COMMANDS.strip().splitlines(),
    "nemotron engine install nemo_rl --from nemo-rl",
    "nemotron engine install megatron_bridge",
    "nemotron engine install nemo_evaluator",
    *(environment.install for environment in ENVIRONMENTS),
    *(f"nemotron {words.format(model='super3-sft-model:v1')} --home home" for words in USE),
    *(how_to_add(*packages.split()).partition(": ")[2] for packages in PACKAGES),
]


def test_an_error_that_advises_what_does_not_exist_fails_its_test() -> None:
    wrong = ("artifact list", "runs --al", "super3 sft -c tinny", "super4 sft", "super3 data pre sft", "jobs lgos")
    for words in wrong:
        with pytest.raises(AssertionError, match="does not exist"):
            UserError("not there", f"make it: nemotron {words} (or give another)")
    for command in ALL:
        UserError("wrong", f"try: {command}")


@pytest.fixture
def place(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a store, a stopped run and a checkout, in which the commands make sense."""
    shutil.copytree(made, tmp_path / "home")
    for run in (STOPPED, OTHER):
        (tmp_path / "home" / "runs" / run).mkdir(parents=True)
        (tmp_path / "home" / "runs" / run / "metrics.jsonl").write_text('{"step": 1, "loss": 4.0}\n')
    for name in ("CHECKOUT", "nemo-rl"):
        (tmp_path / name / "nemo_rl").mkdir(parents=True)
    (tmp_path / "mine.yaml").write_text("defaults: [tiny, _self_]\n")
    (tmp_path / "FILE.jsonl").write_text(
        '{"text": "Mira lives in Oster.", "question": "Where does Mira live?", "expected_answer": "Oster", '
        '"answer": "In the north. #### Oster"}\n'
    )
    save_tokenizer(tmp_path / "FOLDER")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NEMOTRON_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("NEMOTRON_ENGINES", str(tmp_path / "engines"))
    monkeypatch.setattr("nemotron_app.launch.run_process", call_here)
    return tmp_path


def evaluate(home: Path) -> None:
    """Publish an evaluation without a task."""
    store, folder = Store.open(str(home)), home / "work"
    empty = {"schema_version": 1, "tasks": {}, "models": {}, "scores": [], "comparisons": [], "overlap": {}}
    folder.mkdir()
    (folder / "results.json").write_text(json.dumps(empty | {"settings": {}}))
    producer = Producer("eval", "train", "0", "0", "", "", None, "python -m stages.eval.train", {})
    store.publish(folder, name="super3-eval-results", type="EvalResultsArtifact", fingerprint="e", producer=producer)


RUN = subprocess.run


class WouldSync(Exception):
    """uv was asked, dry, and agreed."""


def dry_uv(command: Sequence[str], cwd: Path, env: Mapping[str, str], check: bool) -> Any:
    """Ask uv in earnest whether it could make an environment from the lock, without a network.

    One that is made from a list of its own is made in earnest, as long as it is empty.
    """
    if command[1] == "venv":
        return RUN(command, cwd=cwd, env=env, check=check)
    if "--requirements" in command:
        lines = [line for line in Path(command[-1]).read_text().splitlines() if line[0] not in "#-"]
        assert lines and all("==" in line for line in lines)
        raise WouldSync
    assert list(command[:3]) == ["uv", "sync", "--frozen"]
    assert RUN([*command, "--dry-run", "--offline"], cwd=cwd, env=env, check=check).returncode == 0
    raise WouldSync


@pytest.mark.parametrize("command", ALL)
def test_the_command_of_a_message_works(
    place: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], command: str
) -> None:
    words = shlex.split(command)
    program, *rest = words
    if command == "python3 -m pip install uv":
        assert command in (ROOT / "README.md").read_text()
    elif program == "uv" and rest[0] == "pip":
        packages = [word for word in rest[rest.index(sys.executable) + 1 :] if not word.startswith("-")]
        locked = (ROOT / "uv.lock").read_text()
        assert [name for name in packages if f'\nname = "{name}"\n' not in locked] == []
        assert subprocess.run([*words, "--help"], check=False).returncode == 0  # uv reads all words before it helps
    elif program == "uv":
        assert subprocess.run([*words, "--dry-run", "--frozen", "--offline"], cwd=ROOT, check=False).returncode == 0
    elif rest[:2] == ["-m", "nltk.downloader"]:  # fetches data, from where tests may not
        assert find_spec(rest[1]) is not None
    elif rest[:2] == ["engine", "install"]:
        monkeypatch.setattr("nemotron_app.engines.find_python", lambda environment: sys.executable)
        monkeypatch.setattr("nemotron_app.engines.subprocess.run", dry_uv)
        with pytest.raises(WouldSync):
            main(rest)
    else:
        assert program == "nemotron"
        # which only a running process could obey, and what answers until it is told to end
        if tuple(rest[:2]) in UNRUN or rest[0] in ("chat", "serve"):
            rest.append("--help")
        rest += ["--dry-run"] if rest[0] in families() else []
        if rest == ["report", "super3-eval-results:v1"]:
            evaluate(place / "home")
        if rest[:2] == ["model", "import"]:  # of a hub that is not there
            monkeypatch.setattr("nemotron_app.models.look_at", lambda model, **_: model)
            monkeypatch.setattr("nemotron_app.models.import_hub", lambda store, _: store.resolve("super3-sft-model"))
        try:
            code = main(rest)
        except SystemExit as ended:  # argparse has helped
            code = ended.code
        assert code == 0, "".join(capfd.readouterr())


def test_the_command_that_makes_an_artifact_again_works(place: Path) -> None:
    for stage, verb in zip(STAGES, ("data_prep", "train") * 2, strict=True):
        recorded = ["-c", "tiny", "run.family=nano3", "run.seed=7", "run.force=true", "--json"]
        program, *words = shlex.split(forced_command(stage, verb, recorded))
        assert program == "nemotron"
        assert main([*words, "--dry-run"]) == 0, words


def test_the_command_that_prepares_what_a_config_means_works(place: Path, capfd: pytest.CaptureFixture[str]) -> None:
    shutil.rmtree(place / "home")
    assert main(["super3", "data", "prep", "pretrain", "-c", "tiny", "data_prep.source=FILE.jsonl"]) == 0
    assert main(["super3", "pretrain", "-c", "tiny", "--dry-run"]) == 0
    warning = next(line for line in capfd.readouterr().out.splitlines() if line.startswith("WARNING: data"))
    ((program, *words),) = commands(warning)
    assert program == "nemotron" and main(words) == 0


@pytest.mark.parametrize("stage", ["sft", *slow("pretrain", "eval", "rl")])
def test_the_command_that_makes_what_is_missing_exists(
    place: Path, capfd: pytest.CaptureFixture[str], stage: str
) -> None:
    """Each config, asked for where nothing has been made: what its dry run says to do first can be done."""
    script = importlib.import_module(f"stages.{stage}.train")
    shutil.rmtree(place / "home")
    tried = set()
    for config in sorted(path.stem for path in (script.STEP.directory / "config").glob("*.yaml")):
        family = next((name for name in families() if config.startswith(name)), "super3")
        flag = ["--allow-experimental"] if families()[family].experimental else []
        script.main(["-c", config, f"run.family={family}", "--dry-run", "--json"])
        answer = json.loads(capfd.readouterr().out)
        for problem in answer["problems"]:
            for words in commands(problem):
                words = [word.replace("=FILE", "=FILE.jsonl") for word in words]
                if tuple(words) in tried or words[1] not in families():
                    continue
                tried.add(tuple(words))
                code = main([*words[1:], *flag, "--dry-run"])
                said = "".join(capfd.readouterr())
                # exit code 1: the recipe exists, and this machine has not the GPUs, or the network for its data
                # or the file has no pairs
                excused = code == 1 and (words[2] != "data" or "hf://" in said or "no field 'chosen'" in said)
                assert code == 0 or excused, f"{config}: {shlex.join(words)}\n{said[-2000:]}"
    assert tried or stage == "pretrain"
