"""Programs below benchmarks/ run to their end on very little, with the comparisons of the real run."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support import ROOT, nemotron, run_forked

sys.path.append(str(ROOT / "benchmarks"))

import file_kinds
import invented
from gpu_bench.parts import REHEARSED, parts

LINUX = pytest.mark.skipif(not Path("/proc/self/stat").is_file(), reason="reads /proc")
OWN = {"pretrain": 8, "memory": 2, "sft": 3, "rl": 4, "packing": 4}
"""Rows of ours in each section of data_prep.py."""
ELSEWHERE = ("not installed: ", "give its checkout: ")


def rehearse(program: str, *words: str, measures: bool = False) -> str:
    """What a program prints; it must end well and leave the repository as it is.

    Args:
        measures: its figures of processes are looked at, so it and its commands are new processes and no forks.
    """
    before = records()
    command = [sys.executable, str(ROOT / "benchmarks" / program), *words]
    if measures:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    else:
        done = run_forked(command, ROOT, os.environ)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert records() == before
    return done.stdout


def records() -> dict[str, bytes]:
    files = [*(ROOT / "benchmarks").glob("*.md"), ROOT / "docs" / "finetune.md", ROOT / "docs" / "plan.md"]
    return {file.name: file.read_bytes() for file in files}


@pytest.fixture(scope="session")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Corpus and tokenizers, made by the first section."""
    return tmp_path_factory.mktemp("data-prep")


@LINUX
@pytest.mark.parametrize(
    "section", [pytest.param(name, marks=pytest.mark.slow if name in ("pretrain", "sft") else []) for name in OWN]
)
def test_data_prep(work: Path, section: str) -> None:
    words = ("--rehearse", "--only", section, "--work", str(work), "--json", str(work / "json"))
    text = rehearse("data_prep.py", *words, measures=True)
    found = json.loads((work / "json").read_text(encoding="utf-8"))
    assert len(found["machine"]["code"]) >= 7 and found["machine"]["date"].startswith("20")
    rows = [row for part in found["sections"] for row in part["rows"]]
    assert {row["why"].startswith(ELSEWHERE) for row in rows if row["missing"]} <= {True}
    measured = [row for row in rows if not row["missing"]]
    assert sum(not row["peer"] for row in measured) == OWN[section]
    assert all(row["wall_s"] > 0 and row["name"] in text for row in measured)
    if section in ("pretrain", "sft"):
        judged_by_peers([row for row in measured if "encode_files" not in row["name"]], text)
    elif section != "memory":
        assert all(re.match(r"same|[\d,]+ bins", row["found"]) for row in measured)


def judged_by_peers(measured: list[dict[str, Any]], text: str) -> None:
    """`transformers` and `datasets` are here always, and the corpus has names of control tokens in it."""
    assert any(row["peer"] and row["found"].startswith("same") for row in measured)
    ours = {row["name"]: row["found"] for row in measured if not row["peer"]}
    allowed = r"same( bytes| \.bin|;| but for \d)" if "a thought only ends" in text else r"same( bytes| \.bin|;)"
    assert re.match(allowed, ours.pop("ours, control tokens allowed"))
    assert all(re.search(r"same (bytes )?but for \d+ ", found) for found in ours.values())
    assert re.search(r"[1-9]\d* (of [\d,]+ documents hold|that hold) the name of a control token", text) or (
        "chats have other ids" in text
    )


@pytest.mark.slow
def test_against(work: Path, tmp_path: Path) -> None:
    sections = [word for name in ("answers", "training", "data") for word in ("--only", name)]
    text = rehearse(
        "against.py", "--rehearse", *sections, "--work", str(work), "--json", str(tmp_path / "json"), measures=True
    )
    found = json.loads((tmp_path / "json").read_text(encoding="utf-8"))
    answers, training = found["answers"], found["training"]
    assert [(line["model"], line["sampled"]) for line in answers] == [
        (model, sampled) for model in ("llama", "nemotron_h") for sampled in (False, True)
    ]
    assert all(line["same"] for line in answers if not line["sampled"])
    row = r"^\| \w+ \| (?:greedy, same answers|sampled) \| 2 (?:\| [\d,]+ ){3}\| [\d.]+ \|$"
    assert len(re.findall(row, text, re.MULTILINE)) == 4
    assert [len(line["ours"]) for line in training] == [len(line["trl"]) for line in training] == [1, 1, 1]
    assert [(line["peer"].split(",")[0], len(line["theirs"])) for line in found["data"]] == [
        *[("gigatoken encode_files", 1)] * 3, ("datasets.map", 1),
    ]  # fmt: skip
    memory = next(line for line in training if line["figure"].startswith("peak"))
    assert min(memory["ours"] + memory["trl"]) > 100  # a step of a rehearsal is too short to be timed


def test_mamba_cpu() -> None:
    rows = json.loads(rehearse("mamba_cpu.py", "--rounds", "1", "--json"))["cases"]
    assert len(rows) >= 7
    assert all(row["ratio"] > 0 and (row["difference"] or 0) <= 2e-5 for row in rows)


@pytest.mark.slow
def test_plan() -> None:
    text = rehearse("plan.py")
    assert text in (ROOT / "docs" / "plan.md").read_text(encoding="utf-8")


@pytest.mark.slow
def test_peaks() -> None:
    text = rehearse("peaks.py", "--rehearse", measures=True)
    ((planned, measured),) = re.findall(r"^\| llama \| SFT, .+ \| ([\d,]+) MB \| ([\d,]+) MB \| [\d.]+ \|$", text, re.M)
    assert 500 < int(planned.replace(",", "")) < 2000 and 500 < int(measured.replace(",", "")) < 2000


@pytest.mark.slow
def test_scale() -> None:
    text = rehearse("scale.py", "--rehearse", measures=True)
    assert re.search(r"^## \d{4}-\d\d-\d\d, [0-9a-f]{7}", text, re.MULTILINE)
    rows = re.findall(r"^\| (.+) \| [\d.]+ \|$", text, re.MULTILINE)
    assert [sum(word in row for row in rows) for word in ("artifact", "plan ", "report over")] == [23, 6, 1]


@pytest.mark.slow
def test_tiny_run() -> None:
    text = rehearse("tiny_run.py", "--rehearse")
    assert "4 + 4 + 2 steps" in text
    assert re.search(r"^\| 1 (\| [\d.]+% ){3}\| \d+ \| \d+ \|$", text, re.MULTILINE)


@pytest.mark.slow
def test_rl_methods() -> None:
    text = rehearse("rl_methods.py", "--rehearse", "--only", "rl", "dpo", "reward", "distill", "gspo")
    shares = ", ".join(rf"{name} [\d.]+%" for name in ("sft", "rl", "dpo", "reward", "distill", "gspo"))
    assert re.search(f"^seed 1: {shares}$", text, re.MULTILINE)
    assert len(re.findall(r"^\| \w+ \| \d+% \(\d+% to \d+%\) \|$", text, re.MULTILINE)) == 6


@pytest.mark.slow
def test_rl_generators() -> None:
    """Without vLLM, which the lane `vllm_cpu` has."""
    text = rehearse("rl_generators.py", "twin", "--rehearse", "--generators", "exact", "transformers")
    assert "| step | `exact` | `transformers` |" in text
    assert len(re.findall(r"^\| \d \|( -?[\d.]+ \([\d. to]+\) \|){2}$", text, re.MULTILINE)) == 2
    assert re.search(r"^\| `differing_tokens` \| 0 to 0 \| 0\.\d+ to [\d.]+ \|$", text, re.MULTILINE)


@pytest.mark.parametrize("model", ["nemotron_h", "llama"])
def test_generators(model: str) -> None:
    found = json.loads(rehearse("generators.py", model, "--rehearse", "--json"))
    assert found["rows"] == [1, 3] and found["ratios"]["transformers"] == [1.0, 1.0]
    if model == "nemotron_h":
        assert len(found["ratios"]["exact"]) == 2 and min(found["ratios"]["exact"]) > 0


@pytest.mark.slow
def test_invented(tmp_path: Path) -> None:
    text = rehearse("invented.py", "--rehearse", "--only", "cities", "--work", str(tmp_path))
    found = re.findall(r"^\| (\w+) \| cities \| 32 \| 2 \([12]\) \| \d of 8 \| \d+ \|$", text, re.MULTILINE)
    assert found == ["twin", "llama"]
    assert all(len({value for value, _ in invented.things(name, 75, 11)}) > 3 for name in invented.DOMAINS)


@pytest.mark.slow
def test_environments(tmp_path: Path) -> None:
    """The seeds of an environment, and with the model of one of them the section of against.py."""
    text = rehearse("environments.py", "--rehearse", "--keep", str(tmp_path))
    assert re.search(r"^\| 1 (\| [\d.]+% ){5}(\| [\d.]+ s ){3}\| \d+ \|$", text, re.MULTILINE)
    words = ("--only", "environments", "--store", str(tmp_path / "drawers-1"), "--json", str(tmp_path / "json"))
    text = rehearse("against.py", "--rehearse", *words, measures=True)
    assert re.findall(r"^\| (.+?) \| [\d.]+ \| [\d.]+ \| [\d.]+ \|$", text, re.MULTILINE) == ["ours", "TRL"]
    found = json.loads((tmp_path / "json").read_text(encoding="utf-8"))["environments"]
    assert [(line["loop"], len(line["seconds"])) for line in found] == [("ours", 1), ("TRL", 1)]


@pytest.mark.parametrize("program", ["passports.py", "quantised.py"])
def test_exports_find_what_they_import_and_ask_for_a_model(program: str, tmp_path: Path) -> None:
    """Not to its end: this takes minutes, and other runtimes."""
    command = [sys.executable, str(ROOT / "benchmarks" / program), "nothing", "--home", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, "no artifact 'nothing'" in done.stderr) == (2, True), done.stderr


@pytest.mark.slow
def test_file_kinds(tmp_path: Path) -> None:
    """Of two kinds, one of which is trained on as text; a kind takes a fine-tuning, and the others are read below."""
    kinds = ["qa.csv", "facts.txt"]
    text = rehearse("file_kinds.py", "--rehearse", "--work", str(tmp_path), "--only", ",".join(kinds))
    rows = re.findall(r"^\| `(.+)` \| .+ \| (\d+) \| \d of 8 \| \d+ \|$", text, re.MULTILINE)
    assert rows == [(name, "8") for name in kinds]


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in file_kinds.KINDS if not name.endswith(file_kinds.TEXT)])
def test_the_rows_of_a_file_kind_are_kept(run: Callable[..., Any], tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(file_kinds.KINDS[name][1](file_kinds.facts(8, 11)))
    run(*nemotron("super3", "data", "prep", "sft", "-c", "tiny", f"data_prep.source={name}"))
    (manifest,) = (tmp_path / "home" / "artifacts").glob("*/v1/manifest.json")
    splits = json.loads(manifest.read_text(encoding="utf-8"))["metadata"]["splits"]
    assert sum(split["conversations"] for split in splits.values()) == 8


@pytest.mark.slow
def test_gpu(tmp_path: Path) -> None:
    """All parts but Automodel's, which its own environment runs."""
    found = parts(tmp_path, REHEARSED, before=False, on_gpu=False)
    names = ",".join(part.name for part in found if part.engine != "automodel")
    rehearse("gpu.py", str(tmp_path), "--rehearse", "--minutes", "30", "--only", names)
    found = json.loads((tmp_path / "gpu.json").read_text(encoding="utf-8"))
    assert "rehearsal" in (tmp_path / "gpu.txt").read_text(encoding="utf-8")
    assert found


@pytest.mark.parametrize(
    ("page", "command"),
    [
        ("faults", "python tests/faults/campaign.py"),
        ("resume", "python tests/faults/kills.py"),
        ("sampling", "nemotron check-sampling rl"),
        ("scale", "python benchmarks/scale.py"),
    ],
)
def test_a_record_names_its_command_and_each_section_its_code_and_machine(page: str, command: str) -> None:
    text = (ROOT / "benchmarks" / f"{page}.md").read_text(encoding="utf-8")
    assert f"Made by `{command}" in text[:200]
    sections = text.split("\n## ")[1:]
    assert sections
    for section in sections:
        begin = section[:400]
        assert re.match(r"\d{4}-\d\d-\d\d", begin)
        assert (re.search(r"\b[0-9a-f]{7,40}\b", begin) and "AMD" in begin) or "Intel" in begin or "processor" in begin


def test_rl_time() -> None:
    rows = [line.strip("| ").split(" | ") for line in rehearse("rl_time.py", "--rehearse").splitlines()[2:]]
    assert [(row[0], row[2].partition(",")[0]) for row in rows] == [("llama", "GRPO"), ("llama", "DPO")]
    assert all(float(row[3].split()[0]) > 0 and float(row[4].split()[0]) > 0 for row in rows)
