"""The report of a synthetic pipeline: what the page and the table say is what the artifacts hold."""

import base64
import hashlib
import io
import json
import math
import os
import random
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path

import pytest
from rich.console import Console

from nemotron_app.main import dispatch
from nemotron_app.report.command import build_report
from nemotron_shared.artifacts import Artifact, Producer, Source, Store
from nemotron_shared.artifacts.housekeeping import run_folder
from nemotron_shared.system.errors import UserError
from nemotron_shared.tracking.completions import Completion, CompletionsLog

FAMILY = "super3"
HOSTILE = '<script>alert("x")</script> & </td></table> {{ 7 * 7 }}'
QUESTIONS = 400
RIGHT = {"random": 0.0, "base": 0.02, "sft": 0.41, "rl": 0.93}
LABELS = {"random": "random weights", "base": "base", "sft": "after SFT", "rl": "after RL"}
SCORES = {  # task -> kind, metric, number of items, half of the interval, and each model's score
    "sums": ("generate", "right", QUESTIONS, 0.03, RIGHT),
    "facts": ("choice", "acc", 200, 0.065, {"random": 0.21, "base": 0.415, "sft": 0.62, "rl": 0.61}),
    "prose": ("text", "bits_per_byte", 100, 0.04, {"random": 8.031, "base": 1.207, "sft": 1.315, "rl": 1.319}),
}
VOID = {"meta", "br", "link", "img", "hr", "input"}
PIPELINE = {"steps": [{"name": "sft data_prep", "seconds": 2.3, "reused": True}], "seconds": 190.2, "config": "tiny"}
Made = dict[str, Artifact]


def publish(store: Store, kind: str, type: str, files: dict[str, str], parents: Made, **more) -> Artifact:
    folder = store.home / "work"
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    stage, verb = kind.partition("-")[0], "data_prep" if kind.endswith("data") else "train"
    producer = Producer(
        stage, verb, "0.1.0", "0.1.0", "c" * 64, "d" * 64, "0123456789abcdef-dirty",
        f"python -m stages.{stage}.{verb} -c tiny", {"python": "3.11.7", "torch": "2.13.0"},
    )  # fmt: skip
    used = [artifact.as_parent(role) for role, artifact in parents.items()]
    name = f"{FAMILY}-{kind}"
    return store.publish(folder, name=name, type=type, fingerprint=kind, producer=producer, parents=used, **more)


def lines(rows: list[dict]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def log(name: str, steps: int, start: float, end: float) -> str:
    """metrics.jsonl of a run whose loss or reward goes from `start` towards `end`."""
    rng, rows, clock = random.Random(steps), [], 0.0
    for step in range(1, steps + 1):
        value = end + (start - end) * math.exp(-6 * step / steps) + rng.gauss(0, 0.04)
        clock += 0.18 + 0.04 * rng.random()
        timing = {"seconds": round(clock, 3)} | ({"tokens": step * 4096} if name == "loss" else {})
        parts = {"rewards/exact_match/mean": value - 0.02, "rewards/format/mean": value, "completion_length": 9.5}
        schedule = {"lr": 3e-3 * min(1, step / 20, (steps - step + 1) / 100), "grad_norm": 1.1 + rng.random()}
        rows.append({"step": step, name: value, **(schedule if name == "loss" else parts), **timing})
        if step % 50 == 0:
            rows.append({"step": step, f"valid_{name}": value + 0.02, **timing})
    return lines(rows)


def answers() -> dict[str, list[dict]]:
    """Each model's samples; the reinforced one writes its steps, and the base model something hostile."""
    rng = random.Random(3)
    sums = [[rng.randint(1, 9) for _ in range(4)] for _ in range(QUESTIONS)]
    found: dict[str, list[dict]] = {}
    for model, share in RIGHT.items():
        right, found[model] = set(rng.sample(range(QUESTIONS), round(share * QUESTIONS))), []
        for index, (a, b, c, d) in enumerate(sums):
            total = a + b + c + d
            text = str(total if index in right else total + rng.choice([-2, -1, 1, 3]))
            if model == "rl":
                text = f"<think>{a}+{b}={a + b}\n{a + b}+{c}={a + b + c}\n{a + b + c}+{d}={text}</think>{text}"
            row = {"id": index, "question": f"What is {a}+{b}+{c}+{d}?", "expected": str(total), "output": text}
            found[model].append(row | {"score": float(index in right)})
    found["base"][0]["output"] = HOSTILE
    return found


def results(references: dict[str, str | None]) -> dict:
    """results.json as the evaluation writes it."""
    scores, comparisons, tasks = [], [], {}
    for task, (kind, metric, n, half, values) in SCORES.items():
        unique = n - 4 if kind == "choice" else n
        tasks[task] = {"kind": kind, "metric": metric, "n": n, "n_unique": unique, "lower_is_better": kind == "text"}
        for model, value in values.items():
            interval = [max(0, value - half), value + half if kind == "text" else min(1, value + half)]
            scores.append({"model": model, "task": task, "metric": metric, "value": value, "ci95": interval, "n": n})
        for old, new in pairwise(values):
            change = values[new] - values[old]
            names = {"task": task, "metric": metric, "from": old, "to": new}
            comparisons.append({**names, "difference": change, "ci95": [change - 0.04, change + 0.04], "n": n})
    return {
        "schema_version": 1,
        "tasks": tasks,
        "models": {name: {"reference": references.get(name), "label": label} for name, label in LABELS.items()},
        "scores": scores,
        "comparisons": comparisons,
        "overlap": OVERLAP,
        "settings": {"tasks": None, "limit": None, "greedy": True, "engine": "lm_eval"},
    }


SEEN = {"checked_against": ["super3-sft-data:v1"], "unknown": [], "run": 0, "comparable": 0, "examples": []}
LEAKED = {"id": 7, "how": "near", "text": "Who?", "in": "super3-sft-data:v1", "excerpt": "who <b>asks</b> this"}
OVERLAP = {
    "sums": SEEN | {"of": QUESTIONS, "found": 0, "exact": 0, "near": 0},
    "facts": SEEN | {"of": 60, "found": 0, "exact": 0, "near": 0, "stated": 60},
    "prose": SEEN | {"of": 100, "found": 3, "exact": 2, "near": 1, "sentences": {"of": 600, "found": 14}}
    | {"examples": [LEAKED], "unknown": ["base:v1"]},
}  # fmt: skip


def prompts() -> str:
    """train.jsonl of an RL data set."""
    agent = {"type": "responses_api_agents", "name": "math_with_judge_simple_agent"}
    asked = [f"What is {'+'.join(['7'] * count)}?" for count in range(2, 52)]
    return lines([
        {"responses_create_params": {"input": [{"role": "user", "content": text}]}, "question": text,
         "expected_answer": "7", "agent_ref": agent}
        for text in asked
    ])  # fmt: skip


REFUSED = [{"file": "sums.jsonl", "line": 7, "reason": "no answer", "detail": "", "snippet": HOSTILE}]


def build_pipeline(store: Store, *, evaluation: bool = True) -> Made:
    """All eight artifacts, small, with figures like those of a real tiny run."""
    made: Made = {}
    pretrain = {"train": {"documents": 5702, "tokens": 1180231}, "valid": {"documents": 298, "tokens": 61233}}
    chats = {
        "conversations": 5698, "packed_rows": 640, "tokens": 160321, "trained_tokens": 51233, "fill": 0.97852,
        "sequences": 5698, "sequences_per_row": 8.903,
    }  # fmt: skip
    rejected = {"unknown role": 3, HOSTILE: 1}
    prepared = {
        "pretrain": ("PretrainBlendsArtifact", {"splits": pretrain, "vocab_size": 512, "counts": {"rejected": {}}}),
        "sft": ("SFTDataArtifact", {"pack_size": 256, "splits": {"train": chats}, "counts": {"rejected": rejected}}),
        "rl": ("SplitJsonlDataArtifact", {"splits": {"train": {"rows": 2850}, "test": {"rows": 150}}}),
    }
    runs = {"pretrain": ("loss", 300, 6.2, 0.9), "sft": ("loss", 200, 2.2, 0.35), "rl": ("reward", 100, 0.3, 0.9)}
    source, before = Source("synthetic://documents?seed=1234", "f" * 64, {"rows": 6000}), {}
    for stage, (type, metadata) in prepared.items():
        files = {"train.jsonl": prompts(), "rejected.jsonl": lines(REFUSED)} if stage == "rl" else {"x": "x"}
        data = publish(store, f"{stage}-data", type, files, {}, sources=[source], metadata=metadata)
        files, known = {"metrics.jsonl": log(*runs[stage])}, {"step": 300, "parameters": 1234567}
        model = publish(store, f"{stage}-model", "ModelArtifact", files, {"data": data, **before}, metadata=known)
        made |= {f"{stage}-data": data, f"{stage}-model": model}
        before = {"model": model}
    if not evaluation:
        return made
    tasks = {"tasks": {"sums": {"kind": "generate", "rows": 400}, "facts": {"kind": "choice", "rows": 200}}}
    made["eval-data"] = publish(store, "eval-data", "EvalDataArtifact", {"tasks.json": "{}"}, {}, metadata=tasks)
    models = {"base": made["pretrain-model"], "sft": made["sft-model"], "rl": made["rl-model"]}
    files = {f"samples/{model}/sums.jsonl": lines(rows) for model, rows in answers().items()}
    files["results.json"] = json.dumps(
        results({name: found.reference for name, found in models.items()}), sort_keys=True
    )
    parents = {"data": made["eval-data"], "model": models["rl"], "base": models["base"], "sft": models["sft"]}
    return made | {"eval-results": publish(store, "eval-results", "EvalResultsArtifact", files, parents)}


class Page(HTMLParser):
    """Reads a page, checks that its elements nest, and keeps its attributes and its text."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open, self.elements, self.pieces, self.attributes = [], [], [], []
        self.feed(html)
        self.close()
        assert self.open == []
        self.text = re.sub(r"\s+", " ", " ".join(self.pieces))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append(tag)
        self.attributes += [(tag, name, value) for name, value in attrs]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open[-1:] not in (["style"], ["script"]):
            self.pieces.append(data)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Store:
    store = Store.open(str(tmp_path_factory.mktemp("whole")))
    build_pipeline(store)
    return store


def page_of(store: Store, **more) -> Page:
    return Page(build_report(store, FAMILY, **more).html_path.read_text(encoding="utf-8"))


def test_every_score_and_difference_stands_on_the_page(whole: Store) -> None:
    page = page_of(whole)
    found = results({})
    scores = [(entry["task"] == "prose", entry["value"]) for entry in found["scores"]]
    changes = [(entry["task"] == "prose", entry["difference"]) for entry in found["comparisons"]]
    written = [f"{value:.3f}" if plain else f"{value:.1%}" for plain, value in scores]
    written += [f"{value:+.3f}" if plain else f"{value * 100:+.1f} points" for plain, value in changes]
    assert len(written) == 12 + 9
    assert [text for text in written if text.replace("-", "−") not in page.text] == []
    assert "n = 200, 196 distinct" in page.text
    assert "0 of the 400 questions of sums occur in the training data: 0 exact, 0 near." in page.text
    assert "60 of the answers are stated there, which is what this task asks for." in page.text
    whose = "3 of the 100 texts of prose occur in the training data: 2 exact, 1 near; 14 of their 600 sentences do."
    assert whose in page.text
    assert "What else base:v1 was trained on is not known." in page.text
    assert "near, row 7, in super3-sft-data:v1: who <b>asks</b> this" in page.text


def test_each_stage_is_summed_up_with_its_gain_and_its_cost(whole: Store) -> None:
    text = page_of(whole).text
    assert "0.0% (random weights), 2.0% (base), 41.0% (after SFT), 93.0% (after RL)." in text
    assert "6.824 bits per byte better than random weights (95% interval 6.784 to 6.864)." in text
    assert "39.0 points better than base (95% interval 35.0 to 43.0)." in text
    assert "But worse: prose by 0.108 bits per byte." in text
    assert "52.0 points better than after SFT (95% interval 48.0 to 56.0)." in text


def test_page_stands_alone(whole: Store) -> None:
    html = build_report(whole, FAMILY).html_path.read_text(encoding="utf-8")
    page = Page(html)
    assert len(html.encode()) < 500_000
    assert not re.search(r"https?:|//[a-z]|url\(|@import", html.replace("synthetic://", ""))
    links = [value for _, name, value in page.attributes if name in {"src", "href", "srcset", "action", "data"}]
    targets = [f"#{value}" for _, name, value in page.attributes if name == "id"]
    assert len(links) == 7
    assert links == targets
    assert not {"link", "img", "iframe", "object"} & set(page.elements)
    assert page.elements.count("script") == 1
    assert page.elements.count("path") >= 20


def test_text_from_data_is_escaped(whole: Store) -> None:
    html = build_report(whole, FAMILY).html_path.read_text(encoding="utf-8")
    assert html.count("<script") == 1  # ours, which the policy names by its digest
    digest = base64.b64encode(
        hashlib.sha256(html.split("<script>")[1].split("</script>")[0].encode()).digest()
    ).decode()
    assert f"script-src 'sha256-{digest}'" in html and "default-src 'none'" in html
    assert Page(html).text.count(HOSTILE) == 3  # a model's answer, a reason for rejection, a rejected row


def test_every_table_has_headers_and_every_drawing_a_name(whole: Store) -> None:
    page = page_of(whole)
    scopes = [value for tag, name, value in page.attributes if (tag, name) == ("th", "scope")]
    assert len(scopes) == page.elements.count("th") > 50
    drawings = [value for tag, name, value in page.attributes if tag == "svg" and name in {"aria-label", "aria-hidden"}]
    assert len(drawings) == page.elements.count("svg")


def test_same_store_gives_same_bytes(whole: Store, tmp_path: Path) -> None:
    first = build_report(whole, FAMILY, tmp_path / "a.html").html_path.read_bytes()
    command = [sys.executable, "-m", "nemotron_app.main", "report"]
    other = os.environ | {"PYTHONHASHSEED": "7", "TZ": "Asia/Tokyo", "NEMOTRON_HOME": str(whole.home)}
    subprocess.run([*command, "--out", str(tmp_path / "b.html")], check=True, env=other, stdout=subprocess.DEVNULL)
    assert first == (tmp_path / "b.html").read_bytes()


def test_page_shows_data_lineage_and_environment(whole: Store) -> None:
    text = page_of(whole).text
    assert page_of(whole, pipeline=PIPELINE).text == text  # a later report is the same one
    for expected in (
        "97.9%", "51,233", "3 × unknown role", "└── source: synthetic://documents?seed=1234",
        "2.13.0", "0123456789ab, changed", "1.2M parameters", "python -m stages.rl.train -c tiny",
    ):  # fmt: skip
        assert expected in text


def test_table_json_and_page_agree(whole: Store, capsys: pytest.CaptureFixture[str]) -> None:
    assert dispatch(["report", "--home", str(whole.home), "--json"]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert figures["scores"] == results({})["scores"]
    assert [step["step"] for step in figures["steps"]][::7] == ["pretrain data prep", "eval"]
    assert figures["steps"][5]["score"]["value"] == 0.93
    assert Path(figures["report"]) == whole.home / "reports" / "super3.html"
    assert dispatch(["report", "--home", str(whole.home)]) == 0
    table = capsys.readouterr().out
    assert table.isascii()
    assert re.search(r"rl-model:v1 +20 s +100 steps +valid reward \d\.\d{3} +93\.0% \[90\.0, 96\.0\]", table)


def test_a_named_evaluation_has_its_own_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = Store.open(str(tmp_path))
    made = build_pipeline(store)
    whole = build_report(store, FAMILY).html_path.read_bytes()
    files = {"results.json": json.dumps(results({"sft": made["sft-model"].reference}))}  # of a later fine-tuning
    publish(store, "eval-results", "EvalResultsArtifact", files, {"model": made["pretrain-model"]})
    assert build_report(store, FAMILY).collected.absent["rl-model"].endswith("was used for super3-eval-results:v2.")
    for name in ("super3-eval-results:v1", "eval:v1"):
        assert dispatch(["report", name, "--home", str(store.home), "--json"]) == 0
        steps = {step["step"]: step["artifact"] for step in json.loads(capsys.readouterr().out)["steps"]}
        assert steps["rl"] == "super3-rl-model:v1" and steps["eval"] == "super3-eval-results:v1"
    page = store.home / "reports" / "super3-eval-results-v1.html"
    assert len(page.read_bytes()) > len(whole) * 0.9 and "41.0% (after SFT), 93.0% (after RL)." in page.read_text()
    assert (store.home / "reports" / "super3.html").read_bytes() != whole  # still of the newest evaluation


def test_an_evaluation_of_a_fine_tuning_is_named_and_hides_no_other(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = Store.open(str(tmp_path))
    trained = build_pipeline(store)["sft-model"]
    copy = shutil.copytree(trained.path, tmp_path / "copy")
    command = "python -m stages.sft.train -c .nemotron/finetune/chats-1/train-v2.yaml"
    made_by = replace(trained.manifest.producer, command=command)
    tuned = store.publish(copy, name="super3-sft-model", type="ModelArtifact", fingerprint="t", producer=made_by)
    files = {"results.json": json.dumps(results({"sft": tuned.reference}))}
    publish(store, "eval-results", "EvalResultsArtifact", files, {"model": tuned})
    build_report(store, FAMILY).print()
    said = capsys.readouterr().out
    assert "rl-model:v1" in said and "93.0% [90.0, 96.0]" in said
    assert "not part of it: super3-sft-model:v2, super3-eval-results:v2" in said
    assert "the report of super3-eval-results:v2: nemotron report super3-eval-results:v2" in said
    shutil.rmtree(store.root / "super3-eval-results" / "v1")
    only = build_report(store, FAMILY)
    assert only.collected.artifacts["sft-model"].reference == tuned.reference
    assert only.collected.kinds == ["sft-model", "eval-results"] and only.collected.absent == {}
    only.print()
    assert not re.search(r"^no ", capsys.readouterr().out, re.MULTILINE)
    assert "2 of 2 steps done" in page_of(store).text
    # without an evaluation, too
    shutil.rmtree(store.root / "super3-eval-results")
    for kind in ("pretrain-data", "pretrain-model", "sft-data", "rl-data", "rl-model"):
        shutil.rmtree(store.root / f"super3-{kind}")
    assert list(build_report(store, FAMILY).collected.absent) == ["eval-results"]


def test_a_name_that_does_not_exist_is_told_with_the_nearest(whole: Store) -> None:
    home = str(whole.home)
    with pytest.raises(UserError, match="no artifact 'super3-rl-modl'") as told:
        dispatch(["report", "super3-rl-modl", "--home", home])
    assert told.value.remedy == "did you mean 'super3-rl-model'?"
    with pytest.raises(UserError, match="'super3-rl-model:v1' names a part"):
        dispatch(["report", "super3-rl-model:v1", "--home", home])


def test_answers_that_were_held_out_are_shown_without_right_and_wrong(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = Store.open(str(tmp_path))
    made = build_pipeline(store, evaluation=False)
    asked = "<|im_start|>user\nWho asks?<|im_end|>\n<|im_start|>assistant\n"
    files, scores = {}, []
    for model, value in {"base": 4.0, "sft": 0.5}.items():
        row = {"question": asked, "expected": "<think></think>Nobody.", "bits": 8 * value, "bytes": 8}
        rows = [{"id": 0, **row, "output": f"says {model}"}, {"id": 1, **row}]  # the first ones only were asked
        files[f"samples/{model}/held_out.jsonl"] = lines(rows)
        interval = [value - 0.1, value + 0.1]
        score = {"model": model, "task": "held_out", "metric": "bits_per_byte", "value": value, "n": 2}
        scores.append(score | {"ci95": interval})
    about = {"kind": "answer", "metric": "bits_per_byte", "n": 2, "lower_is_better": True}
    models = {"base": made["pretrain-model"], "sft": made["sft-model"]}
    named = {name: {"reference": one.reference, "label": LABELS[name]} for name, one in models.items()}
    found = results({}) | {"tasks": {"held_out": about}, "models": named, "scores": scores}
    files["results.json"] = json.dumps(found | {"comparisons": [], "overlap": {}})
    publish(store, "eval-results", "EvalResultsArtifact", files, {"model": models["sft"], "base": models["base"]})
    text = page_of(store).text
    assert "user: Who asks?" in text and "Who asks? <|im_end|>" not in text
    assert "4.000 bits per byte says base" in text and "0.500 bits per byte says sft" in text
    assert "</think>" not in text and "✗ wrong" not in text and "No answers have been kept" not in text
    build_report(store, FAMILY).print()
    said = capsys.readouterr().out
    assert "held_out bits per byte" in said and "0.500 [0.400, 0.600]" in said


def test_an_older_artifact_that_is_not_shown_is_not_called_newer(tmp_path: Path) -> None:
    store = Store.open(str(tmp_path))
    made = build_pipeline(store)
    files = {"results.json": json.dumps(results({"sft": made["sft-model"].reference}))}
    named = publish(store, "eval-results", "EvalResultsArtifact", files, {"model": made["sft-model"]})
    later = ["super3-rl-data:v1", "super3-rl-model:v1", "super3-eval-data:v1"]
    for moment, newer in (("2020-01-01T00:00:00+00:00", []), ("2999-01-01T00:00:00+01:00", later)):
        for kind in ("rl-data", "rl-model", "eval-data"):
            file = made[kind].path / "manifest.json"
            file.write_text(json.dumps(json.loads(file.read_text()) | {"created_at": moment}))
        assert build_report(store, FAMILY, results=named).collected.newer == newer


def test_table_fits_a_terminal(whole: Store) -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=80, color_system=None)
    build_report(whole, FAMILY, pipeline=PIPELINE).print(console)
    lines = console.file.getvalue().splitlines()
    assert max(map(len, lines[:-1])) <= 80
    assert any("sft-data:v1" in line and "reused" in line for line in lines)
    assert "160k tokens" not in console.file.getvalue(), "the column of least worth"
    bare = [not line[:16].strip() for line in lines[:-1]]
    assert not any(map(all, pairwise(bare))), "a row has three lines"


@pytest.mark.parametrize("width", [40, 60])
def test_a_narrow_terminal_gets_every_score(whole: Store, width: int) -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=width, color_system=None)
    build_report(whole, FAMILY, pipeline=PIPELINE).print(console)
    lines = console.file.getvalue().splitlines()
    assert max(map(len, lines[:-1])) <= width
    assert all(text in console.file.getvalue() for text in ("93.0% [90.0, 96.0]", "sft-data:v1", "reused"))


def test_what_got_worse_is_told_with_what_the_records_say(whole: Store) -> None:
    text = page_of(whole).text
    assert "Got worse: prose, bits per byte: 1.207 → 1.315, after SFT." in text
    assert "trained on 5,698 conversations and on no pretraining documents" in text
    assert (
        "Got worse: sums" not in text
        and "after RL." not in text.partition("Got worse")[2].partition("Same questions")[0]
    )


def test_lengths_and_refused_rows_of_data_are_shown(whole: Store) -> None:
    text = page_of(whole).text
    assert "Question length, characters, train" in text and "median 60, longest 110" in text
    assert "1 × no answer sums.jsonl:7" in text


def test_memory_and_the_load_of_experts_are_drawn(tmp_path: Path) -> None:
    store = Store.open(str(tmp_path))
    made = build_pipeline(store, evaluation=False)
    rows = [
        {"step": n, "loss": 9 / n, "memory_gb": 1.5, "expert_load/3": 1.2, "expert_load/11": 2.0} for n in range(1, 31)
    ]
    segments = [{"machine": {"processor": "Zed 9", "cores": 4, "memory_gb": 16.0, "processes": 1}}]
    parents = {"data": made["pretrain-data"]}
    publish(store, "pretrain-model", "ModelArtifact", {"metrics.jsonl": lines(rows)}, parents, segments=segments)
    text = page_of(store).text
    assert "peak memory 1.50 GB" in text and "Memory held, GB" in text
    assert "Zed 9, 4 cores, 16 GB of memory" in text
    assert re.search(r"Busiest expert by layer, × even share\s+layer 3 layer 11", text)
    assert "Loss by step, logarithmic" in text


def test_missing_stages_are_said_to_be_missing(tmp_path: Path) -> None:
    store = Store.open(str(tmp_path))
    build_pipeline(store, evaluation=False)
    shutil.rmtree(store.root / "super3-rl-model")
    text = page_of(store).text
    for expected in ("No super3-rl-model has", "No super3-eval-results has", "5 of 8 steps done", "validation loss"):
        assert expected in text


def test_evaluation_decides_which_artifacts_belong_together(tmp_path: Path) -> None:
    store = Store.open(str(tmp_path))
    made = build_pipeline(store)
    publish(store, "sft-model", "ModelArtifact", {"metrics.jsonl": ""}, {"data": made["sft-data"]})
    shutil.rmtree(made["rl-data"].path)
    found = build_report(store, FAMILY).collected
    assert found.artifacts["sft-model"].reference == "super3-sft-model:v1"
    assert list(found.absent) == ["rl-data"]
    assert found.absent["rl-data"].endswith("was used for super3-eval-results:v1, but is missing from the store.")
    assert "not part of it: super3-sft-model:v2." in page_of(store).text


def test_durations_come_from_the_manifests(tmp_path: Path) -> None:
    store = Store.open(str(tmp_path))
    began = {"began": "2026-01-31T12:00:00+00:00"}
    files = {"metrics.jsonl": log("loss", 30, 2.0, 1.0)}
    publish(store, "sft-data", "SFTDataArtifact", {"x": "x"}, {}, segments=[began | {"seconds": 75.26}])
    publish(store, "sft-model", "ModelArtifact", files, {}, segments=[began, began | {"seconds": 4.0}])
    text = page_of(store).text
    assert "2 of 8 steps done, 1 min 19 s in total" in text
    assert "1 min 15 s" in text and "4.0 s (last of 2 attempts)" in text
    assert re.search(r"30 steps ·[\w ]+tokens · 4\.0 s", text)  # in the card, as in the terminal


def test_newer_models_are_told_in_the_terminal_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = Store.open(str(tmp_path))
    made = build_pipeline(store)
    publish(store, "sft-model", "ModelArtifact", {"metrics.jsonl": ""}, {"data": made["sft-data"]})
    build_report(store, FAMILY).print()
    assert "not part of it: super3-sft-model:v2" in capsys.readouterr().out


def test_nothing_to_report_and_foreign_results_are_errors(tmp_path: Path) -> None:
    store = Store.open(str(tmp_path))
    with pytest.raises(UserError, match="nothing of super3"):
        build_report(store, FAMILY)
    made = build_pipeline(store)
    with pytest.raises(UserError, match="did you mean 'super3'"):
        build_report(store, "supre3")
    (made["eval-results"].path / "results.json").write_text('{"schema_version": 2}')
    with pytest.raises(UserError, match="schema_version is 2"):
        build_report(store, FAMILY)


def build_episodes(store: Store) -> None:
    """A pipeline whose model was trained and evaluated in an environment."""
    made = build_pipeline(store, evaluation=False)
    figures = {"turns": 2.0, "calls": 1.0, "used_tools": 0.75}
    seconds = {"sampling_seconds": 0.5, "seconds": 0.1, "training_seconds": 0.4}
    limits = {"cut_turns": 0.0, "out_of_tokens": 0.5, "out_of_turns": 0.0, "failed": 0.0}
    steps = [
        {"step": n, "reward": n / 30, **{f"environment/{name}": value for name, value in (limits | seconds).items()},
         "environment/turns": 2.0}
        for n in range(1, 31)
    ]  # fmt: skip
    model = publish(
        store, "rl-model", "ModelArtifact", {"metrics.jsonl": lines(steps)}, {"data": made["rl-data"]}, metadata={}
    )
    turns = [
        {"by": "prompt", "tokens": 20, "text": "What is the key of 55?"},
        {"by": "model", "tokens": 41, "text": "<tool_call>find</tool_call>"},
        {"by": "environment", "tokens": 22, "text": HOSTILE},
    ]
    row = {"id": 0, "question": "What is the key of 55?", "expected": "blue", "output": "blue", "score": -0.5}
    score = {"model": "rl", "task": "drawers", "metric": "reward", "value": -0.5, "ci95": [-0.7, -0.3], "n": 1}
    found = results({}) | {
        "tasks": {"drawers": {"kind": "episode", "metric": "reward", "n": 1}},
        "models": {"rl": {"reference": model.reference, "label": LABELS["rl"]}},
        "scores": [score | {"figures": figures, "cut": 0.5}],
        "comparisons": [],
        "overlap": {},
    }
    files = {"samples/rl/drawers.jsonl": lines([row | {"turns": turns}]), "results.json": json.dumps(found)}
    publish(store, "eval-results", "EvalResultsArtifact", files, {"model": model})


def test_episodes_are_shown_turn_by_turn_with_what_is_masked(tmp_path: Path) -> None:
    store = Store.open(str(tmp_path))
    build_episodes(store)
    page = page_of(store)
    assert "No. 0, after RL: wrong" in page.text
    assert "prompt, 20 tokens, masked What is the key of 55?" in page.text
    assert "model, 41 tokens <tool_call>find</tool_call>" in page.text
    assert f"environment, 22 tokens, masked {HOSTILE}" in page.text
    assert "model turns calls used tools ended by a limit after RL 2.00 1.00 0.75 50.0%" in page.text
    assert "Episodes ended by a limit" in page.text
    assert re.search(r"Seconds of a step\s+sampling environments training", page.text)


def test_completions_of_rl_are_shown_by_step_from_the_folder_of_its_run(tmp_path: Path) -> None:
    store = Store.open(str(tmp_path))
    model = build_pipeline(store, evaluation=False)["rl-model"]
    gone = "None to show: logger.completions was 0, or the folder of the run is gone."
    assert gone in page_of(store).text
    folder = run_folder(store, model.manifest.name, model.manifest.producer.config_digest)
    folder.mkdir(parents=True)
    shutil.copyfile(model.path / "metrics.jsonl", folder / "metrics.jsonl")
    log = CompletionsLog(folder / "completions.jsonl")
    for step in range(1, 101):
        about = {"step": step, "prompt": "2+2?", "expected": "4", "tokens": 3, "ended": "stopped"}
        best = Completion(which="best", completion=HOSTILE, rewards={"strict": 1.0}, reward=1.0, advantage=0.5, **about)
        log.append(step, [best, Completion(which="worst", completion="", rewards={"strict": 0.0}, reward=0.0, **about)])
    page, html = page_of(store), build_report(store, FAMILY).html_path.read_text()
    steps = [int(step) for step in re.findall(r"Step (\d+): reward", page.text)]
    assert steps == [1, 15, 29, 43, 58, 72, 86, 100] and html.count("<details open>") == 1
    assert page.text.count(f"best reward 1, advantage +0.5, 3 tokens, stopped 2+2? {HOSTILE} 4") == 8
    assert page.text.count("worst reward 0, 3 tokens, stopped 2+2? (nothing) 4") == 8 and HOSTILE not in html
    (told,) = [step["completions"] for step in build_report(store, FAMILY).summary()["steps"] if "completions" in step]
    assert [one["step"] for one in told[::2]] == steps
    for width in (80, 120):
        console = Console(width=width, file=io.StringIO())
        build_report(store, FAMILY).print(console, whole=True)
        lines = console.file.getvalue().splitlines()
        first = next(number for number, line in enumerate(lines) if line.startswith("step  which  reward"))
        assert [line.split()[:3] for line in lines[first + 1 : first + 5]] == [
            ["1", "best", "1"], ["1", "worst", "0"], ["100", "best", "1"], ["100", "worst", "0"]
        ]  # fmt: skip
        assert max(map(len, lines[first : first + 5])) <= width
        assert lines[first + 5] == f"more of them: nemotron runs show {folder.name}"
    thought = "<think>8-8+9=0+9=9</think>9"
    about["prompt"] = "How much is 8-8+9+9-9+0-0?"
    log.append(101, [Completion(which="best", completion=thought, reward=1.0, rewards={"strict": 1.0}, **about)])
    console = Console(width=80, file=io.StringIO())
    build_report(store, FAMILY).print(console, whole=True)
    assert thought in console.file.getvalue(), "the text has the room of columns that say less"
    (folder / "metrics.jsonl").write_text("{}\n")
    assert gone in page_of(store).text, "another run works there now"
