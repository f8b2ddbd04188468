"""Every command that a message prints works.

All strings of the source that contain a command are collected; each has a row in REMEDIES with the values of its
placeholders, and what comes out is run: dry where it would train, for real where it only looks, with `--help` where
it needs a network. A new message without a row fails.
"""

import ast
import importlib
import json
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from lanes import slow
from support import MEMBERS, ROOT, STAGES, call_here, member_folder

from nemotron_app.finetune.command import USE
from nemotron_app.main import main
from nemotron_data.tokenizers.tiny import save_tokenizer
from nemotron_shared.artifacts import Producer, Store
from nemotron_shared.artifacts.verified import forced_command
from nemotron_shared.families import families
from nemotron_shared.runtime.environments import ENVIRONMENTS

COMMAND = re.compile(
    r"(?<![\w./-])(?:(?:uv run )?nemotron(?= [a-z{-])|uv (?=(?:sync|pip|run|python|lock|add)\b)|torchrun (?=-|\w+/)"
    r"|python3? (?=-|\w+/)|(?<!uv )(?<!-m )pip (?=install))"
)
END = re.compile(r"[;`(\n]|, |: | and set | \(")
BUILT = ("plan.py", "help.py")
"""Modules that build commands out of the user's own words: the tests at the end run what they build."""
INSTALL = [each.install.removeprefix("nemotron engine install ") for each in ENVIRONMENTS]
STOPPED, OTHER = "super3-sft-model-0123456789ab", "super3-rl-model-0123456789ab"
PYTHON = {"sys.executable": [sys.executable]}
FAMILY = {"family": ["super3"]}

UNRUN = {
    ("runs", "stop"), ("jobs", "logs"), ("jobs", "cancel"), ("airgap", "build"),
    ("artifacts", "replay"),
}  # fmt: skip

REMEDIES: dict[str, dict[str, list[str]]] = {
    # nemotron_app
    "{naturalsize(size)} {'freed' if yes else 'in all; to remove it: nemotron artifacts gc --yes'}": {
        "naturalsize(size)": ["2 MB"],
        "'freed' if yes else 'in all; to remove it: nemotron artifacts gc --yes'": [
            "in all; to remove it: nemotron artifacts gc --yes"
        ],
    },
    "clone the repository, run `uv run {environment.install}` there, and set {FOLDER_VARIABLE} to "
    "its folder .engines": {
        "environment.install": ["nemotron engine install automodel"],
        "FOLDER_VARIABLE": ["NEMOTRON_ENGINES"],
    },
    "compile mamba-ssm and causal-conv1d on a node with nvcc: nemotron airgap build FOLDER (docs/airgap.md)": {},
    "complete. On the other side: nemotron airgap build {folder}": {"folder": ["/lustre/airgap"]},
    "nemotron engine install {self.name}": {"self.name": INSTALL},
    "make it: nemotron {family} {before} -c {name}{force} (or {given})": {
        "family": ["super3"],
        "before": ["pretrain", "sft"],
        "name": ["tiny"],
        "force": ["", " --force"],
        "given": ["give run.model=FOLDER"],
    },
    "see: nemotron engine list": {},
    "install it on such a machine; what works here: nemotron engine list": {},
    "install it: python3 -m pip install uv": {},
    "see: nemotron --help": {},
    "; what they mean: nemotron config explain {key}": {"key": ["engine.peft"]},
    "say: nemotron {family} {command[1]}": {"family": ["super3"], "command[1]": ["eval -c tiny"]},
    "say: nemotron {DEFAULT_FAMILY} {wrong[1]}": {"DEFAULT_FAMILY": ["super3"], "wrong[1]": ["eval -c tiny"]},
    "say it without {family}: nemotron {wrong}": {"family": ["super3"], "wrong": ["doctor", "runs"]},
    "see: nemotron config show {stages[0]}/local": {"stages[0]": ["sft"]},
    "it is one of {' and '.join(having)}: nemotron config explain {key} --stage {having[0]}": {
        "' and '.join(having)": ["rl"],
        "key": ["grpo.temperature"],
        "having[0]": ["rl"],
    },
    "give another name: nemotron new my_{file.stem} --from {base}": {"file.stem": ["tiny"], "base": ["sft/tiny"]},
    "#   nemotron {family} {stage} -c {file}": {"family": ["super3"], "stage": ["sft"], "file": ["mine.yaml"]},
    "  nemotron {model} data prep {stage} -c {file}\n": {"model": ["super3"], "stage": ["sft"], "file": ["mine.yaml"]},
    "wrote {file}\n  nemotron {model} {stage} -c {file} --dry-run\n{prepare}  nemotron {model} {stage} -c {file}": {
        "file": ["mine.yaml"],
        "model": ["super3"],
        "stage": ["sft"],
        "prepare": [""],
    },
    "see: nemotron jobs": {},
    "; the jobs that it submitted keep running; its log shows how to end them: nemotron jobs logs {record.id}": {
        "record.id": ["4711"]
    },
    "name models, or runs: nemotron runs --all": {},
    "see what was stopped: nemotron runs": {},
    "see what there is: nemotron artifacts list": {},
    "programs read metrics.jsonl of: nemotron runs --json": {},
    "its report: nemotron report --family {names[0]}": {"names[0]": ["super3"]},
    "the report of {evaluation}: nemotron report {evaluation}": {"evaluation": ["super3-eval-results:v1"]},
    "to compare them: nemotron report --compare {given}": {"given": [f"{STOPPED} {OTHER}"]},
    "{beside}\n  the whole: nemotron report{about_one}": {
        "beside": ["to compare it with another training, name both"],
        "about_one": [""],
    },
    "\n  one evaluation: nemotron report {evaluation}:v{made[-1]}": {
        "evaluation": ["super3-eval-results"],
        "made[-1]": ["1"],
    },
    "see what else is: nemotron artifacts verify {artifact.reference}": {"artifact.reference": ["super3-sft-model:v1"]},
    "evaluate again, or see what else is: nemotron artifacts verify {artifact.reference}": {
        "artifact.reference": ["super3-sft-model:v1"]
    },
    ", or make {read.reference} again, too: nemotron artifacts replay {made.reference} --lineage": {
        "read.reference": ["super3-sft-data:v1"],
        "made.reference": ["super3-sft-model:v1"],
    },
    "nemotron artifacts replay {artifact.reference} --repair": {"artifact.reference": ["super3-sft-model:v1"]},
    'a row needs {"responses_create_params": {"input": [{"role": "user", "content": ...}]}}; other rows, as of '
    "question and expected_answer, are made so by: nemotron super3 data prep rl -c local "
    "data_prep.source=FILE.jsonl": {},
    "uv sync --all-packages": {},
    "{hidden} older: nemotron jobs --all": {"hidden": ["3"]},
    "job {record.id} keeps running without this command\n"
    "  come back: nemotron jobs logs {record.id} --follow{where(record)}\n"
    "  end it: nemotron jobs cancel {record.id}{where(record)}": {"record.id": ["4711"], "where(record)": [""]},
    "state: nemotron jobs{at}\nlog: nemotron jobs logs {last.id} --follow{at}": {"last.id": ["4711"], "at": [""]},
    "end it: nemotron jobs cancel {first.id}{at}": {"first.id": ["4711"], "at": [""]},
    "see the models: nemotron --help": {},
    "say: nemotron {family} eval{chosen} -t {task[0]}": {**FAMILY, "chosen": [" -c tiny"], "task[0]": ["sums"]},
    "for your own data, say: nemotron {request.family} {' '.join(request.command)} -c local": {
        "request.family": ["super3"],
        "' '.join(request.command)": ["sft"],
    },
    "say one of: {', '.join(COMMANDS)}; see: nemotron --help": {"', '.join(COMMANDS)": ["pipeline, data, sft"]},
    "make something first: nemotron {family} pipeline -c tiny{flag}": {
        "family": ["super49b"],
        "flag": [" --allow-experimental"],
    },
    "see: nemotron runs --all": {},
    "{hidden} finished: nemotron runs --all": {"hidden": ["3"]},
    "see what is: nemotron runs": {},
    "stop it first: nemotron runs stop {run.name}": {"run.name": ["super3-sft-model-0123456789ab"]},
    "nemotron {words.format(model=tuned.reference)}{home}": {
        "words.format(model=tuned.reference)": [words.format(model="super3-sft-model:v1") for words in USE],
        "home": [" --home home"],
    },
    # nemotron_shared
    "remove those first; see: nemotron artifacts lineage {users[0]}": {"users[0]": ["super3-rl-model:v1"]},
    "let the run finish, or remove it: nemotron runs rm {users[0].split()[-1]}": {
        "users[0].split()[-1]": ["super3-sft-model-0123456789ab"]
    },
    "restore the file, or remove the artifact: nemotron artifacts rm {child}": {"child": ["super3-rl-data:v1"]},
    "remove it: nemotron artifacts rm {found.reference}": {"found.reference": ["super3-rl-data:v1"]},
    "put its bytes back: nemotron artifacts replay {artifact.reference} --repair; or {again}": {
        "artifact.reference": ["super3-sft-model:v1"],
        "again": ["make it again: nemotron super3 sft -c tiny --force"],
    },
    "remove the version and make it again: nemotron artifacts rm {artifact.reference}": {
        "artifact.reference": ["super3-rl-data:v1"]
    },
    "see `nemotron artifacts list` for the types of all artifacts": {},
    "add it to this environment: uv pip install --python {sys.executable} {' '.join(packages)}": {
        **PYTHON,
        "' '.join(packages)": [
            "ray",
            "datasets huggingface-hub",
            "s3fs",
            "gcsfs",
            "huggingface-hub",
            "wandb",
            "bitsandbytes",
        ],
    },
    "; for a newer one: nemotron model import {wanted}": {"wanted": ["hf://org/name"]},
    "nemotron {command}": {"command": ["model import hf://org/name@v2", "model import ./FOLDER"]},
    "bring it in again: nemotron model import {reference}": {"reference": ["hf://org/name"]},
    "make one: nemotron super3 pipeline -c tiny; or name one: a folder, or hf://org/name": {},
    "bring it in again: nemotron model import {text}": {"text": ["hf://org/name"]},
    # nemotron_engines
    "install it: nemotron engine install nemo_rl --from {installation.checkout}": {
        "installation.checkout": ["nemo-rl"]
    },
    "install the version that uv.lock names: uv sync --all-packages": {},
    "it belongs to the ordinary environment: uv sync --all-packages": {},
    "run inside the container {wanted.container}, or:\n    git clone --recursive {REPOSITORY} nemo-rl\n    git -C "
    "nemo-rl checkout --recurse-submodules {wanted.commit}\n  and then: nemotron engine install nemo_rl --from "
    "nemo-rl (or set engine.checkout=nemo-rl)": {
        "wanted.container": ["c"],
        "REPOSITORY": ["r"],
        "wanted.commit": ["0"],
    },
    "nemotron engine install megatron_bridge": {},
    # stages
    "nemotron engine install nemo_evaluator": {},
    "python -m nltk.downloader punkt_tab": {},
    "prepare it first, for example with: nemotron {family} data prep eval -c tiny": FAMILY,
    "pretrain on them: nemotron super3 data prep pretrain -c local data_prep.source=FILE.jsonl "
    "data_prep.tokenizer.model=./FOLDER; or name the fields of the chats: data_prep.prompt_field=... "
    "data_prep.response_field=...": {},
}
NO_REMEDIES = {"nemotron {package_version('nemotron-shared')}"}
OPTIONAL_PACKAGES = 7
"""Calls of `how_to_add`; one more wants its packages in the row above."""


def sources() -> Iterator[Path]:
    """Every module of the members."""
    for member in MEMBERS:
        folder = member_folder(member)
        for path in sorted(folder.rglob("*.py")):
            if not {"tests", "build"} & set(path.relative_to(folder).parts):
                yield path


def strings(path: Path) -> Iterator[str]:
    """The texts of a module, with `{expression}` for what is filled in; no docstrings, no names of programs."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    inside = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in ast.walk(node)}
    silent = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    silent |= {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.keyword) and node.arg in USAGE}
    for node in ast.walk(tree):
        if id(node) in silent:
            continue
        if isinstance(node, ast.JoinedStr):
            yield "".join(
                f"{{{ast.unparse(part.value)}}}" if isinstance(part, ast.FormattedValue) else str(part.value)
                for part in node.values
                if isinstance(part, ast.FormattedValue | ast.Constant)
            )
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in inside:
            yield node.value


USAGE = {"prog", "usage"}


def templates() -> set[str]:
    """Every text with a command in it, but for usages and the heads of pages that a command writes."""
    found = {text for path in sources() if path.name not in BUILT for text in strings(path) if COMMAND.search(text)}
    return {text for text in found if not re.match(r"usage: |# \w", text)} - NO_REMEDIES


def commands(text: str) -> list[list[str]]:
    """The commands in a text, word by word."""
    found = []
    for match in COMMAND.finditer(text):
        rest = text[match.start() :]
        end = END.search(rest)
        found.append(shlex.split(rest[: end.start()] if end else rest))
    return found


def filled() -> Iterator[str]:
    """Every message, as often as its placeholders have values."""
    for text, values in REMEDIES.items():
        for choice in product(*values.values()):
            message = text
            for name, value in zip(values, choice, strict=True):
                assert f"{{{name}}}" in text, f"{text}: no placeholder {name}"
                message = message.replace(f"{{{name}}}", value)
            yield message


def test_every_message_with_a_command_has_a_row_and_every_row_a_message() -> None:
    found = templates()
    assert len(found) > 20
    assert found - REMEDIES.keys() == set(), "add a row with values for the placeholders"
    assert REMEDIES.keys() - found == set(), "no message says this any more"
    callers = [text for path in sources() for text in re.findall(r"how_to_add\((?!\*packages)", path.read_text())]
    assert len(callers) == OPTIONAL_PACKAGES


ALL = sorted({tuple(command) for text in filled() for command in commands(text)})


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
        assert "nemo-run==" in Path(command[-1]).read_text()
        raise WouldSync
    assert list(command[:3]) == ["uv", "sync", "--frozen"]
    assert RUN([*command, "--dry-run", "--offline"], cwd=cwd, env=env, check=check).returncode == 0
    raise WouldSync


@pytest.mark.parametrize("words", ALL, ids=shlex.join)
def test_the_command_of_a_message_works(
    place: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], words: tuple[str, ...]
) -> None:
    words = words[2:] if words[:2] == ("uv", "run") else words
    program, *rest = words
    if words == ("python3", "-m", "pip", "install", "uv"):
        assert shlex.join(words) in (ROOT / "README.md").read_text()
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
    warning = next(line for line in capfd.readouterr().err.splitlines() if line.startswith("WARNING: data"))
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
                excused = code == 1 and (words[2] != "data" or "hf://" in said)
                assert code == 0 or excused, f"{config}: {shlex.join(words)}\n{said[-2000:]}"
    assert tried or stage == "pretrain"
