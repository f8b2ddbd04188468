"""Public benchmarks from a folder in the schema of their hub repositories: prepared, refused, asked and scored."""

import json
from collections.abc import Callable
from pathlib import Path

import nltk
import pytest

from nemotron_data.formats.eval_tasks import read_task_rows, read_tasks
from nemotron_data.held_out import items_of
from stages.eval import data_prep, train
from stages.eval.benchmark_samples import mean_of, passes, read_benchmark

SUBJECTS = ("astronomy", "virology")
GSM8K = [{"question": f"Ann has {n} apples. How many?", "answer": f"She has 1,{n}00.\n#### 1,{n}00"} for n in range(6)]
MMLU = [
    {"question": f"Which is {n}?", "subject": subject, "choices": ["a", "b", "c", "d"], "answer": n % 4}
    for subject in SUBJECTS
    for n in range(5)
]
IFEVAL = [
    {"key": 1000, "prompt": "Write no commas.", "instruction_id_list": ["punctuation:no_comma"], "kwargs": [{}]},
    {"key": 1001, "prompt": "Write nine thousand words.", "instruction_id_list": ["length_constraints:number_words"],
     "kwargs": [{"relation": "at least", "num_words": 9000}]},
]  # fmt: skip
HUMANEVAL = [
    {"task_id": "0", "prompt": "def add(a, b):\n", "entry_point": "add", "canonical_solution": "    return a + b\n",
     "test": "def check(candidate):\n    assert candidate(2, 3) == 5\n"},
]  # fmt: skip


@pytest.fixture
def folders(tmp_path: Path) -> dict[str, Path]:
    files = {
        "gsm8k/main/test": GSM8K[:2], "gsm8k/main/train": GSM8K, "gsm8k/socratic/test": GSM8K[3:],
        "mmlu/all/test": MMLU[3:7], "mmlu/all/dev": MMLU, "ifeval/ifeval_input_data": IFEVAL,
        "humaneval/openai_humaneval/test": HUMANEVAL,
    }  # fmt: skip
    for name, rows in files.items():
        path = tmp_path / f"{name}.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "gsm8k" / "LICENSE").write_text("as a copy of the repository has it")
    return {name: tmp_path / name for name in ("gsm8k", "mmlu", "ifeval", "humaneval")}


@pytest.fixture
def step(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[Path | None, str]]:
    """Run data preparation or the evaluation; give the artifact's folder, None where it was refused, and the words."""

    def run(step, *overrides: str) -> tuple[Path | None, str]:
        own = ["data_prep.source=null"] if step is data_prep.STEP else []
        code = step.main(["-c", "tiny", f"run.home={tmp_path / 'home'}", *own, *overrides, "--json"])
        said = capsys.readouterr()
        return (None if code else Path(json.loads(said.out.splitlines()[-1])["path"])), said.out + said.err

    return run


def chosen(folders: dict[str, Path], *names: str) -> list[str]:
    return [f"data_prep.benchmarks.{name}={folders[name]}" for name in names]


def test_their_rows_become_tasks_with_what_is_looked_for(step, folders) -> None:
    folder, _ = step(data_prep.STEP, *chosen(folders, *folders))
    tasks = read_tasks(folder)
    assert {name: (task.kind, task.rows) for name, task in tasks.items()} == {
        "gsm8k": ("generate", 2), "mmlu": ("choice", 4), "ifeval": ("instructions", 2), "humaneval": ("code", 1),
    }  # fmt: skip
    asked = list(read_task_rows(tasks["gsm8k"].file, "generate"))
    assert [row["expected"] for row in asked] == ["1000", "1100"]
    assert [item.keys for item in items_of(tasks["ifeval"])] == [("Write no commas.",), ("Write nine thousand words.",)]
    assert len((folder / "gsm8k.examples.jsonl").read_text().splitlines()) == 6


def test_examples_are_drawn_by_the_seed(folders, step) -> None:
    from stages.eval.engines.lm_eval.ask import definitions_of, tasks_of

    folder, _ = step(data_prep.STEP, *chosen(folders, "gsm8k"))
    definitions = [str(path) for path in definitions_of(read_tasks(folder)["gsm8k"], folder.parent / "made", None)]

    def drawn(seed: int) -> list[str]:
        (task,) = tasks_of(definitions, seed)["tasks"].values()
        return [json.dumps(example) for _ in range(3) for example in task.sampler.sample(3)]

    assert drawn(1) == drawn(1) != drawn(2)


def test_what_is_missing_is_named_with_what_brings_it(step, folders, tmp_path: Path) -> None:
    _, said = step(data_prep.STEP, "data_prep.benchmarks.gsm8k=/nowhere")
    assert "data_prep.benchmarks.gsm8k: there is no folder /nowhere" in said
    assert "hf download --repo-type dataset openai/gsm8k --local-dir /nowhere" in said
    _, said = step(data_prep.STEP, "data_prep.benchmarks.gsm9k=/nowhere")
    assert "did you mean 'data_prep.benchmarks.gsm8k'?" in said
    (folders["mmlu"] / "all" / "dev.jsonl").unlink()
    _, said = step(data_prep.STEP, *chosen(folders, "mmlu"))
    assert "has no file whose name begins with 'dev'" in said
    (folders["humaneval"] / "openai_humaneval" / "test.jsonl").write_text('{"prompt": "def f():"}\n')
    _, said = step(data_prep.STEP, *chosen(folders, "humaneval"))
    assert "test.jsonl:1: no field 'test', which rows of humaneval have" in said


def test_programs_run_with_leave_only_and_ifeval_needs_its_data(step, folders, monkeypatch) -> None:
    monkeypatch.setattr(nltk.data, "path", [])
    step(data_prep.STEP, *chosen(folders, *folders))
    folder, said = step(train.STEP, "run.model=null")
    assert folder is None
    assert "'humaneval' runs programs that the model wrote, with your rights, on this machine" in said
    assert "evaluation.run_generated_code=true" in said
    assert "python -m nltk.downloader punkt_tab" in said
    _, said = step(train.STEP, "run.model=null", "engine=nemo_evaluator", "evaluation.tasks=[gsm8k]")
    assert "'gsm8k' is asked by the engine lm_eval only" in said


def test_a_program_passes_where_it_ends_well(monkeypatch) -> None:
    monkeypatch.setattr("stages.eval.benchmark_samples.SECONDS", 2)
    assert passes("import math\nassert math.sqrt(4) == 2")
    assert not passes("assert 1 == 2")
    assert not passes("while True: pass")
    assert not passes("open('large', 'w').write('x' * 3_000_000)")


def test_both_metrics_of_an_answer_are_kept(step, folders) -> None:
    folder, _ = step(data_prep.STEP, *chosen(folders, "gsm8k"))
    logged = [
        {"doc_id": 0, "doc": GSM8K[0] | {"row": 0, "expected": "1000"}, "resps": [["It is 1,000 apples."]],
         "filter": name, "metrics": ["exact_match"], "exact_match": value}
        for name, value in (("strict-match", 0.0), ("flexible-extract", 1.0))
    ]  # fmt: skip
    (sample,) = read_benchmark(read_tasks(folder)["gsm8k"], logged)
    assert sample["harness"] == {"exact_match,strict-match": 0.0, "exact_match,flexible-extract": 1.0}
    assert (sample["strict"], sample["lenient"]) == (0.0, 1.0)
    assert mean_of([[True, False], [True]]) == pytest.approx(2 / 3)


@pytest.mark.slow
def test_a_model_is_asked_all_of_them(step, folders, monkeypatch) -> None:
    monkeypatch.setattr(nltk.data, "find", lambda name: name)  # no instruction here counts sentences
    step(data_prep.STEP, *chosen(folders, *folders))
    folder, said = step(
        train.STEP, "run.model=null", "evaluation.run_generated_code=true", "evaluation.max_new_tokens=8"
    )
    assert folder is not None, said
    results = json.loads((folder / "results.json").read_text())
    scores = {entry["task"]: entry for entry in results["scores"]}
    assert {name: (entry["metric"], entry["n"]) for name, entry in scores.items()} == {
        "gsm8k": ("right", 2), "mmlu": ("acc", 4), "ifeval": ("followed", 2), "humaneval": ("passed", 1),
    }  # fmt: skip
    assert set(scores["gsm8k"]["harness"]) == {"exact_match,strict-match", "exact_match,flexible-extract"}
    assert scores["mmlu"]["harness"] == {"acc": scores["mmlu"]["value"]}
    assert scores["ifeval"]["harness"]["prompt_level_strict_acc"] == scores["ifeval"]["value"]
    asked = [json.loads(line) for line in (folder / "samples" / "random" / "mmlu.jsonl").read_text().splitlines()]
    assert [row["question"] for row in asked] == [row["question"] for row in MMLU[3:7]]
