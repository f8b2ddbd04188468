"""The guides' promises, one by one: each row of seeds.yaml is what happens today, no better and no worse.

A row that begins to work without being claimed fails like one that stops working.
"""

import json
import os
import re
import shlex
import subprocess
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest
from seeds_page import PAGE, page
from seeds_table import CLAIMS, Row, covered, expected_ids, lanes, read_table
from support import ROOT, argv, can_be_forked, no_wandb, run_forked

from nemotron_data.tokenizers.tiny import save_tokenizer
from nemotron_engines.modeling.architecture import load_architecture, parameters_of
from nemotron_shared.artifacts import Producer, Store
from nemotron_shared.families import families
from nemotron_shared.stages import STAGES, ArtifactType
from nemotron_shared.tracking.trackers import can_log

ROWS, FILES = read_table()
Outcome = subprocess.CompletedProcess[str]
WEIGHTS = "models/nemotron_weights/full-precision/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16"
"""Where the first guide has its model."""
PRODUCER = Producer("tests", "train", "0.1.0", "0.1.0", "c" * 64, "d" * 64, None, "made by a test", {"cpu": 1})


def run_in(home: Path, store: Path, command: str, folder: str) -> Outcome:
    """Run a command in a folder of its own, with the guides' files; `&&` joins commands."""
    for name, text in FILES.items():
        (home / name).parent.mkdir(exist_ok=True)
        (home / name).write_text(text, encoding="utf-8")
    cwd = ROOT / folder if folder else home
    environment = os.environ | no_wandb(home) | {"NEMOTRON_HOME": str(store), "HF_HUB_OFFLINE": "1"}
    environment = {name: text for name, text in environment.items() if name != "HF_TOKEN"}
    *before, last = [shlex.split(part) for part in command.split(" && ")]
    for words in before:
        result = run_one(words, cwd, environment)
        assert result.returncode == 0, f"{shlex.join(words)}\n{result.stderr}"
    return run_one(last, cwd, environment)


def run_one(words: list[str], cwd: Path, environment: dict[str, str]) -> Outcome:
    """Nearly all run in forks, and those of other programs as processes of their own."""
    command = argv(words)
    if can_be_forked(command):
        return run_forked(command, cwd, environment)
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("kept", ["WANDB_API_KEY", "WANDB_IDENTITY_TOKEN_FILE", "WANDB_MODE", ".netrc", "settings"])
def test_what_a_developer_has_of_wandb_makes_no_row_true(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kept: str
) -> None:
    account, store = tmp_path / "account", tmp_path / "store"
    (account / ".config" / "wandb").mkdir(parents=True)
    monkeypatch.setenv("HOME", str(account))
    if kept == ".netrc":
        (account / kept).write_text("machine api.wandb.ai login user password k\n")
    elif kept == "settings":
        (account / ".config" / "wandb" / kept).write_text("[default]\nmode = offline\n")
    else:
        monkeypatch.setenv(kept, "offline")
    assert can_log(os.environ), "or nothing would be shown"
    asked = "python -c 'from nemotron_shared.tracking.trackers import can_log; print(can_log())'"
    assert run_in(tmp_path, store, asked, "").stdout == "False\n"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store that has what each stage of each recipe makes, as far as a dry run looks at it; see `made` in the table.

    Models have the sizes of the real ones and no weights; data has a tokenizer and no rows.
    """
    home = tmp_path_factory.mktemp("made")
    for family in {row.command.split()[1] for row in ROWS if row.made}:
        for stage in (STAGES[name] for name in families()[family].stages):
            stand_in(home, stage.data.type, stage.data.name(family), data_files(stage.name))
            if stage.result.type == "ModelArtifact":
                stand_in(home, stage.result.type, stage.result.name(family), model_files(family))
    return home


def stand_in(home: Path, kind: ArtifactType, name: str, files: dict[str, bytes]) -> None:
    folder = home / "new"
    folder.mkdir()
    save_tokenizer(folder / "tokenizer" if "data" in name else folder)
    for file, content in files.items():
        (folder / file).write_bytes(content)
    Store.open(home).publish(
        folder, name=name, type=kind, fingerprint=name, producer=PRODUCER, metadata={"pack_size": 4096}
    )


def model_files(family: str) -> dict[str, bytes]:
    fields = load_architecture(family, {})
    layers = {"block_configs": [{}] * 80} if family == "super49b" else {}
    parameters = 49 * 10**9 if family == "super49b" else parameters_of(fields, 512).total
    # Of a type whose width no reader knows: the shapes of the whole model, and no bytes.
    entry = {"weight": {"dtype": "F256", "shape": [parameters], "data_offsets": [0, 0]}}
    header = json.dumps(entry).encode()
    config = json.dumps({"model_type": "nemotron_h"} | fields | layers).encode()
    return {"config.json": config, "model.safetensors": len(header).to_bytes(8, "little") + header}


def data_files(stage: str) -> dict[str, bytes]:
    return {"train.jsonl": b"", "val.jsonl": b""} if stage == "rl" else {}


def value_of(config: dict[str, Any], key: str) -> Any:
    """A value by its dotted key; what is absent is said, since null is a value."""
    node: Any = config
    for part in key.split("."):
        if not isinstance(node, dict) or part not in node:
            return f"no such key: {key}"
        node = node[part]
    return node


def compare_problems(row: Row, result: Outcome) -> None:
    """A dry run lists what the table does, no more and no less; doctor finds no more, for machines differ."""
    if "--json" in row.command:
        found = [problem.splitlines()[0] for problem in json.loads(result.stdout)["problems"]]
    elif "--dry-run" in row.command:
        section = result.stdout.partition("\n# problems\n")[2].partition("\n\n")[0]
        found = [line for line in section.splitlines() if not line.startswith(" ")]
    else:
        found = [line for line in result.stdout.splitlines() if line.startswith("  FAIL")]
    assert found and [line for line in found if not any(part in line for part in row.problems)] == [], result.stdout
    assert "--dry-run" not in row.command or len(found) == len(row.problems), found


def compare_before(row: Row, result: Outcome) -> None:
    """What is to do before a job is submitted, no more and no less: keys, which nobody has here, and earlier steps."""
    if "--json" in row.command:
        found = [text.splitlines()[0] for text in json.loads(result.stdout)["pending"]]
    else:
        section = result.stdout.partition("\n# to do before it is submitted\n")[2].partition("\n\n")[0]
        found = [line for line in section.splitlines() if not line.startswith(" ")]
    assert len(found) == len(row.before), found
    assert [line for line in found if not any(part in line for part in row.before)] == [], found


def way(row: Row) -> tuple[str, str, bool]:
    return row.command, row.folder, row.made


def commands() -> list[Any]:
    """The rows of each command together: it runs once."""
    ordered = sorted((row for row in ROWS if row.command), key=way)
    together = [list(rows) for _, rows in groupby(ordered, key=way)]
    return [pytest.param(rows, id=",".join(map(str, rows))) for rows in together]


@pytest.mark.parametrize("rows", commands())
def test_a_command_does_what_the_table_says(request: pytest.FixtureRequest, rows: list[Row], tmp_path: Path) -> None:
    command, folder, has_all = way(rows[0])
    store = request.getfixturevalue("made") if has_all else tmp_path / "store"
    if has_all:
        (tmp_path / WEIGHTS).parent.mkdir(parents=True)
        (tmp_path / WEIGHTS).symlink_to(store / "artifacts" / "nano3-sft-model" / "v1")
    result = run_in(tmp_path, store, command, folder)
    said = result.stdout + result.stderr
    for row in rows:
        told = f"{row}\n{command}\n{said}"
        assert result.returncode == row.exit, f"exit code {result.returncode}: {told}"
        assert [text for text in row.text if text not in said] == [], told
        if row.problems:
            compare_problems(row, result)
        if "--dry-run" in row.command and re.search(r" (--run|-r|--batch|-b) ", row.command):
            compare_before(row, result)
        if row.error:
            assert row.error in re.split(r"^error: ", result.stderr, flags=re.M)[-1], told
        if row.values:
            config = json.loads(result.stdout)["config"]
            assert {key: value_of(config, key) for key in row.values} == dict(row.values), told
        if row.state in CLAIMS["run"]:
            assert "Traceback" not in result.stderr, told


def test_files_have_the_words_of_the_table() -> None:
    rows = [row for row in ROWS if row.file]
    texts = {row.file: (ROOT / row.file).read_text(encoding="utf-8") for row in rows}
    assert [(str(row), wanted) for row in rows for wanted in row.text if wanted not in texts[row.file]] == []
    assert len(rows) >= 10


def test_every_id_has_a_row() -> None:
    assert covered(ROWS) == expected_ids()
    ids = [name for row in ROWS for name in row.ids]
    assert len(ids) == len(set(ids)), "an id stands twice"
    assert len(ROWS) >= 300


def test_named_tests_are_run_by_ci() -> None:
    """`read_table` has refused what no lane collects; here is how many there are of each kind."""
    kinds = [row.evidence for row in ROWS if row.test]
    assert kinds.count("Slurm") >= 20 and kinds.count("test") >= 60 and kinds.count("library") >= 10
    assert {"automodel", "megatron", "evaluator"} <= set(lanes())


def test_the_page_shows_the_table() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(ROWS), "run: python tests/seeds_page.py"
