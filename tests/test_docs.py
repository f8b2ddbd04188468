"""What the documents say is true: commands run, tables show the configs' values, links lead somewhere.

Commands run as they are written, data preparation included. tests/unrun.yaml lists all others, such as those that would
train, with the reason and with the tests that run the same code. Files that the examples name are written first, from
the documents' own blocks where they show them.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable
from importlib import import_module
from itertools import pairwise
from pathlib import Path

import pytest
import yaml
from documents import DOCUMENTS, Command, all_blocks, anchors, blocks, commands, name_of, prose, tables
from omegaconf import OmegaConf
from support import MEMBERS, ROOT, STAGES, call_here, make_model

from nemotron_app.main import OTHER_COMMANDS, main
from nemotron_app.report.command import COLUMNS, SPARE
from nemotron_data.tokenizers.tiny import save_tokenizer
from nemotron_shared.artifacts import Producer, Store
from nemotron_shared.config.compose import compose
from nemotron_shared.config.references import leaf_keys
from nemotron_shared.families import families
from nemotron_shared.machine.environments import environment_of
from nemotron_shared.stages import STAGES as STAGE_TABLE

COMMANDS = commands()
ANSWERS = {"chat", "check-sampling", "generate", "serve"}
PROGRAMS = {"nemotron", "python", "torchrun"}
LONG = ("benchmarks/", "tests/matrix/", "tests/faults/")
"""Programs that take minutes."""
ASKED = json.dumps({"question": "Ann has 3 apples. How many?", "answer": "She has 3.\n#### 3"}) + "\n"
TEXTS = {
    "web/a.jsonl": '{"text": "Mira lives in Oster."}\n',
    "books/a.txt": "Tova keeps a goat.\n",
    "old.txt": "A goat.\n",
    "preferences.jsonl": "".join(
        f'{{"prompt": "{n}+2?", "chosen": "{n + 2}", "rejected": "0"}}\n' for n in range(1, 20)
    ),
    "notes.jsonl": "".join(json.dumps({"text": f"Note {number}. Tova keeps a goat."}) + "\n" for number in range(60)),
    "gsm8k/test.jsonl": ASKED,
    "gsm8k/train.jsonl": 5 * ASKED,
}


RUN, DRY_RUN, READ = "run", "with --dry-run", "arguments read"
"""What happens to a command here: it runs as it is written, or with `--dry-run`, or only its arguments are parsed."""
LOOKED, SHOWN = "looked at", "shown"
"""Its files, names and options are checked, and nothing is started; or it stands in a block that nothing here reads."""
UNRUN = Path(__file__).with_name("unrun.yaml")


def stage_steps(command: Command) -> bool:
    """Whether a command runs steps of a stage, and not `nemotron artifacts`, `nemotron airgap` or `--help`."""
    return any(word in families() or "stages" in re.split(r"[./]", word) for word in command.words) and not (
        {"artifacts", "report", "inspect", "airgap"} & set(command.words)
    )


def only_prepares(command: Command) -> bool:
    """Whether a command prepares data of the tiny config or the reader's own files here, which takes a moment."""
    here = any(
        word == "tiny" or word.startswith(("data_prep.source=", "data_prep.benchmarks.")) for word in command.words
    )
    prepares = "prep" in command.words or any("data_prep" in word.split(".") for word in command.words[:3])
    return prepares and here and not {"--run", "--batch"} & set(command.words)


def way(command: Command) -> str:
    """What `test_a_command_of_the_documents_runs` does with a command, or what other tests here do."""
    program, *rest = command.words
    if not command.is_shell:
        return SHOWN
    if program not in PROGRAMS or rest[0].startswith(LONG):
        return LOOKED
    if rest[:2] in (["engine", "install"], ["airgap", "build"]):
        return LOOKED
    if rest[0] in ANSWERS or (rest[0] == "env" and rest[1:] not in (["list"], ["try", "drawers"])):
        return READ
    trains = stage_steps(command) and not only_prepares(command)
    starts = trains or rest[0] == "finetune" or rest[:2] == ["airgap", "fetch"]
    return DRY_RUN if starts and not {"-d", "--dry-run"} & set(rest) else RUN


def execute(command: Command) -> int:
    """Run a command in the way that it can be run here, and return its exit code."""
    program, *rest = command.words
    how = way(command)
    if rest[:2] == ["engine", "install"]:  # tests/test_remedies.py asks uv whether it could
        return 0 if environment_of(rest[2]) else 2
    if rest[:2] == ["airgap", "build"]:
        return main([*rest, "--help"])
    if how == READ:
        return 0 if import_module(OTHER_COMMANDS[rest[0]]).command.make_context(rest[0], rest[1:]) else 2
    if how == DRY_RUN:
        rest.append("--dry-run")
    if program == "nemotron":
        return main(rest)
    if program == "torchrun":
        rest = [word for word in rest if not re.fullmatch(r"--(nproc-per-node|nnodes)=\d+", word)]
        module = rest[0].removesuffix(".py").replace("/", ".")
        return call_here([sys.executable, "-m", module, *rest[1:]])
    assert program == "python"
    rest = [str(ROOT / word) if word.endswith(".py") else word for word in rest]
    return subprocess.run([sys.executable, *rest], check=False).returncode


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of real data of every stage, a little of it, for commands that look into it."""
    home = tmp_path_factory.mktemp("prepared")
    for stage in STAGES:
        script = import_module(f"stages.{stage}.data_prep")
        assert script.main(["-c", "tiny", "--sample", "200", f"run.home={home}"]) == 0
    return home


@pytest.fixture
def place(
    tmp_path: Path, made: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Callable[[Command], None]:
    """Go where a command can run: the examples' files are there, and with `-c` a store of nothing."""

    def prepare(command: Command) -> None:
        languages = "json", "jsonl", "toml", "yaml", "python", "text"
        titled = [block for language in languages for block in all_blocks(language) if block.title]
        for name, text in {**TEXTS, **{block.title: block.text for block in titled}}.items():
            (tmp_path / name).parent.mkdir(exist_ok=True)
            (tmp_path / name).write_text(text, encoding="utf-8")
        if "qa" in command.words:  # the page shows two rows, and says that a few hundred are needed
            rows = ({"question": f"What is {left}+{right}?", "answer": f"#### {left + right}"}
                    for left in range(20) for right in range(20))  # fmt: skip
            (tmp_path / "problems.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
        for folder in ("my-tokenizer", "my-model"):
            save_tokenizer(tmp_path / folder)
        make_model(tmp_path / "my-model")
        if "inspect" in command.words:
            shutil.copytree(request.getfixturevalue("prepared"), tmp_path / "home")
        elif "local" in command.words or not {"-c", "--config"} & set(command.words):
            shutil.copytree(made, tmp_path / "home")
        if "run.reward_model=super3-reward-model:latest" in command.words:  # which a command before it makes
            made_before = tmp_path / "scores"
            made_before.mkdir()
            (made_before / "config.json").write_text(
                '{"model_type": "nemotron_h", "architectures": ["NemotronHForSequenceClassification"]}'
            )
            producer = Producer("rl", "train", "0", "0", "", "", None, "python -m stages.rl.train", {})
            kind = STAGE_TABLE["rl"].other_results["reward_modeling"]
            Store.open(str(tmp_path / "home")).publish(
                made_before, name=kind.name("super3"), type=kind.type, fingerprint="1", producer=producer
            )
        if "--compare" in command.words:  # the models of these tests have learned nothing
            for model in tmp_path.glob("home/artifacts/*-model/v1"):
                (model / "metrics.jsonl").write_text('{"step": 1, "loss": 4.0, "seconds": 1.5}\n')
        if list(command.words[1:3]) == ["runs", "show"]:  # shared/app/tests/test_runs_command.py has completions
            (tmp_path / "home" / "runs" / "super3-rl-model-0").mkdir(parents=True)
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("NEMOTRON_HOME", str(tmp_path / "home"))
        monkeypatch.setenv("WANDB_API_KEY", "0" * 40)  # which the documents' env.toml needs
        monkeypatch.setattr("nemotron_app.launch.run_process", call_here)
        if command.words[1] == "verify":
            assert main(["export", "sft", command.words[2], "--no-verify"]) == 0
        # most models and data here are empty; tests/test_rehearsal.py has the real thing
        monkeypatch.setattr("nemotron_shared.step.step.is_rehearsed", lambda checked: False)

    return prepare


def takes_long(command: Command) -> bool:
    """A cluster is started, or the whole pipeline runs, which another command of the documents does as well."""
    words = set(command.words)
    return "ray" in words or ("pipeline" in words and ("nano3" in words or "qa" in words))


@pytest.mark.parametrize(
    "command",
    [
        pytest.param(one, id=str(one), marks=[pytest.mark.slow] if takes_long(one) else [])
        for one in COMMANDS
        if one.is_shell and one.words[0] in PROGRAMS
    ],
)
def test_a_command_of_the_documents_runs(place, capfd: pytest.CaptureFixture[str], command: Command) -> None:
    if command.words[1].startswith(LONG):
        assert (ROOT / command.words[1]).is_file(), command.places
        return
    place(command)
    code = execute(command)
    # a page about an engine shows recipes for clusters, whose data and models are not here: exit code 1 of a dry run
    allowed = {0, 1} if all(where.startswith("docs/engines/") for where in command.places) else {0}
    assert code in allowed, f"{command.places}: {command}\n{''.join(capfd.readouterr())}"


def is_finding(words: tuple[str, ...]) -> bool:
    return len(words) == 2 and words[1].startswith("findings/") and (ROOT / words[1]).is_file()


def is_script(words: tuple[str, ...]) -> bool:
    """A script of ours: there, executable, without a syntax error, called with members that exist."""
    path = ROOT / words[0]
    good = path.is_file() and os.access(path, os.X_OK) and set(words[1:]) <= set(MEMBERS)
    return good and subprocess.run(["bash", "-n", str(path)], check=False).returncode == 0


def is_engine(words: tuple[str, ...]) -> bool:
    """`ci/engine.sh` with an engine that it knows."""
    script = (ROOT / words[0]).read_text()
    return len(words) == 2 and f"\n{words[1]})" in script and is_script(words[:1])


def is_lanes(words: tuple[str, ...]) -> bool:
    """`ci/lanes.py` with lanes that it knows."""
    script = (ROOT / words[1]).read_text()
    return all(f'"{word}"' in script for word in words[2:])


def is_behaviour(words: tuple[str, ...]) -> bool:
    """`ci/behaviour.py`, which takes minutes, with a verb that it knows and a file."""
    return f'"{words[2]}"' in (ROOT / words[1]).read_text() and len(words) == 4


def is_from_elsewhere(words: tuple[str, ...]) -> bool:
    """What fetches other people's packages or sources; ours are extras that exist."""
    extras = [re.fullmatch(r"nemotron-(\w+)\[(\w+)\]", word) for word in words if word.startswith("nemotron")]
    return all(extra and extra[2] in _extras(extra[1]) for extra in extras)


def _extras(stage: str) -> set[str]:
    return set(
        tomllib.loads((ROOT / "stages" / stage / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    )


def is_pytest(words: tuple[str, ...]) -> bool:
    """Paths that exist, the lanes, our own option, and words that a test of the path's file has in its name."""
    known = {"-m", "slow", "", "-n0", "-k", "--fuzz=100000"}
    paths = [word for word in words[1:] if word not in known and words[words.index(word) - 1] != "-k"]
    text = "".join((ROOT / path).read_text() for path in paths if path.endswith(".py"))
    chosen = [after for word, after in pairwise(words) if word == "-k"]
    named = all(re.search(rf"^def test_\w*{word}", text, re.MULTILINE) for word in chosen)
    return named and all((ROOT / path).exists() for path in paths)


def is_changed(words: tuple[str, ...]) -> bool:
    """`ci/changed.py`, run where it needs no other branch."""
    command = [sys.executable, str(ROOT / "ci" / "changed.py"), "--all"]
    found = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return len(words) == 3 and words[2] in {"--all", "origin/main"} and json.loads(found) == list(MEMBERS)


def is_installation(words: tuple[str, ...]) -> bool:
    """What needs a network or changes the environment that this test runs in."""
    return words in {("python3", "-m", "pip", "install", "uv"), ("uv", "sync")}


def is_torchrun(words: tuple[str, ...]) -> bool:
    """The program of an engine's environment, which this machine may not have, with a script that exists."""
    return (ROOT / words[1]).is_file()


def is_version(words: tuple[str, ...]) -> bool:
    """`uv version` would edit the repository."""
    return (
        words[2] == "--package" and words[3].removeprefix("nemotron-") in MEMBERS and words[4:] == ("--bump", "minor")
    )


def is_newest(words: tuple[str, ...]) -> bool:
    """`ci/newest.py` for every lane, which its own tests do without a registry."""
    return (ROOT / words[1]).is_file() and not words[2:]


# Commands that are looked at and not run, by how they begin.
LOOKED_AT: dict[tuple[str, ...], Callable[[tuple[str, ...]], bool]] = {
    ("python3", "-m"): is_installation,
    (".engines/automodel/bin/torchrun",): is_torchrun,
    ("python3", "ci/behaviour.py"): is_behaviour,
    ("python3", "ci/changed.py"): is_changed,
    ("python3", "ci/lanes.py"): is_lanes,
    ("python3", "ci/newest.py"): is_newest,
    ("uv", "sync"): is_installation,
    ("uv", "version"): is_version,
    ("pytest",): is_pytest,
    ("bash",): is_finding,
    ("git",): is_from_elsewhere,
    ("pip", "install"): is_from_elsewhere,
    ("ci/check.sh",): is_script,
    ("ci/engine.sh",): is_engine,
    ("ci/stage.sh",): is_script,
    ("ci/image.sh",): is_script,
    ("ci/release.sh",): is_script,
    (".ci/run",): is_script,
}


def test_every_other_command_is_known_and_could_run() -> None:
    for command in COMMANDS:
        if command.is_shell and command.words[0] not in PROGRAMS:
            checks = [check for start, check in LOOKED_AT.items() if command.words[: len(start)] == start]
            assert len(checks) == 1, f"{command.places[0]}: no check for the command: {command}"
            assert checks[0](command.words), f"{command.places[0]}: could not run: {command}"


def test_every_command_that_is_not_run_is_listed_with_its_reason() -> None:
    groups = yaml.safe_load(UNRUN.read_text(encoding="utf-8"))
    assert all(group.keys() == {"why", "how", "tests", "commands"} for group in groups)
    listed = [(command, group["how"]) for group in groups for command in group["commands"]]
    assert len(set(listed)) == len(listed)
    found = {(str(command), way(command)) for command in COMMANDS if way(command) != RUN}
    problems = [f"not listed: {command} ({how})" for command, how in sorted(found - set(listed))]
    problems += [f"runs now, or is gone: {command} ({how})" for command, how in sorted(set(listed) - found)]
    assert not problems, f"{UNRUN.name}: " + "\n".join(problems)
    for test in (test for group in groups for test in group["tests"]):
        file, _, name = test.partition("::")
        assert (ROOT / file).is_file(), test
        assert not name or re.search(rf"^def {name}\(", (ROOT / file).read_text(), re.MULTILINE), test


def test_the_commands_were_seen() -> None:
    assert len(COMMANDS) >= 70
    assert sum(command.words[0] in PROGRAMS for command in COMMANDS) >= 57
    assert sum("stages" in place for command in COMMANDS for place in command.places) >= 24


def test_links_lead_somewhere() -> None:
    seen = 0
    for document in DOCUMENTS:
        for target in re.findall(r"\]\(([^)\s]+)\)", prose(document)):
            file, _, anchor = target.partition("#")
            path = (document.parent / file).resolve() if file else document
            seen += 1
            if not target.startswith("http"):
                assert path.exists(), f"{name_of(document)}: {target}"
                assert not anchor or anchor in anchors(path), f"{name_of(document)}: {target}"
    assert seen >= 25


@pytest.mark.parametrize("document", DOCUMENTS, ids=name_of)
def test_no_figure_is_missing(document: Path) -> None:
    lines = enumerate(document.read_text(encoding="utf-8").splitlines(), start=1)
    assert [number for number, line in lines if "FIGURE" in line] == []


def raw(stage: str, config: str) -> dict[str, object]:
    """Values by dotted key, references as they are written."""
    tree = compose(ROOT / "stages" / stage / "config", config, []).tree
    content = OmegaConf.to_container(tree, resolve=False)
    found = {}
    for key in leaf_keys(tree):
        node = content
        for part in key.split("."):
            node = node[part]  # type: ignore[index,call-overload]
        found[key] = node
    return found


def read(cell: str) -> object:
    return yaml.safe_load(cell.strip("`"))


@pytest.mark.parametrize("stage", STAGES)
def test_the_qa_table_shows_what_qa_changes(stage: str) -> None:
    tiny, qa = raw(stage, "tiny"), raw(stage, "qa")
    (rows,) = tables(ROOT / "stages" / stage / "README.md", "| key | tiny | qa |")
    shown = {key.strip("`"): (read(before), read(after)) for key, before, after in rows}
    assert shown == {key: (tiny[key], qa[key]) for key in tiny if tiny[key] != qa[key]}


@pytest.mark.parametrize("stage", STAGES)
def test_the_engines_table_is_honest(stage: str) -> None:
    (rows,) = tables(ROOT / "stages" / stage / "README.md", "| engine | library | state |")
    there = {row[0].strip("`") for row in rows if row[2] != "Not there yet."}
    assert there == set(import_module(f"stages.{stage}.train").ENGINES.places().keys())


def test_the_file_map_names_everything() -> None:
    found = [block for block in blocks(ROOT / "README.md") if any(line.startswith("uv.lock") for line in block.lines)]
    named = {line.split()[0].rstrip("/") for line in found[0].lines}
    assert [name for name in named if not (ROOT / name).exists()] == []
    ignored = {line.rstrip("/") for line in (ROOT / ".gitignore").read_text().splitlines()} | {".git"}
    present = {
        path.name for path in ROOT.iterdir() if path.is_file() or any(file.is_file() for file in path.rglob("*"))
    }
    assert {name for name in present - ignored if not name.endswith(".egg-info")} == {
        name.partition("/")[0] for name in named
    }


def test_artifact_names_of_the_documents_are_made_by_a_step() -> None:
    steps = [import_module(f"stages.{stage}.{verb}").STEP for stage in STAGES for verb in ("data_prep", "train")]
    names = [made.name("{family}") for step in steps for made in (step.makes, *step.others)]
    harvest = (ROOT / "tests" / "plugin" / "nemotron_toy" / "harvest" / "train.py").read_text()  # of an outside stage
    names += [f"{{family}}-{kind}" for kind in re.findall(r'Product\("([a-z-]+)"', harvest)]
    known = {name.format(family=family) for name in names for family in families()}
    seen = set()
    for document in DOCUMENTS:
        names = re.findall(r"\b(?:super3|nano3|super49b)-[a-z]+-[a-z]+\b", document.read_text(encoding="utf-8"))
        assert set(names) <= known, f"{name_of(document)}: {set(names) - known}"
        seen |= set(names)
    assert len(seen) >= 8


def test_examples_of_data_are_valid() -> None:
    rows = [line for language in ("json", "jsonl") for block in all_blocks(language) for line in objects(block.text)]
    assert len(rows) >= 15
    assert tomllib.loads((ROOT / "env.toml.example").read_text())["wandb"]["project"] == "nemotron"


def objects(text: str) -> list[dict]:
    """One object over many lines, or one per line."""
    return [json.loads(text)] if text.startswith("{\n") else [json.loads(line) for line in text.splitlines()]


def test_the_sample_of_a_report_has_its_columns() -> None:
    sample = (ROOT / "README.md").read_text(encoding="utf-8").partition("```text\n")[2]
    found = re.split(r"  +", sample.splitlines()[1])
    assert found[:-1] == [one for one in COLUMNS if one not in SPARE], "as 80 columns show it"


def test_generated_parts_of_the_documents_are_up_to_date(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "ci")
    pages = import_module("pages").pages()
    stale = [name_of(page) for page, text in pages.items() if page.read_text(encoding="utf-8") != text]
    assert not stale, "run: uv run python ci/pages.py"
    assert len(pages) >= 15
