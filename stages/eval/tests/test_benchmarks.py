"""Public benchmarks from a folder in the schema of their hub repositories: prepared, refused, asked and scored."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nltk
import pytest
import yaml

from nemotron_data.chat.thought import after_thought
from nemotron_data.formats.eval_tasks import EvalTask, read_task_rows, read_tasks
from nemotron_data.held_out import items_of
from nemotron_shared.system.errors import UserError
from stages.eval import data_prep, train
from stages.eval.benchmarks import definitions, follows, overruled, passes, read_benchmark
from stages.eval.harness_tasks import FINAL_ANSWER, Answer
from stages.eval.schema import EvaluationSection
from stages.eval.scoring import mean_of

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
        own = ["data_prep.source=null"] if step is data_prep else []
        code = step.main(["-c", "tiny", f"run.home={tmp_path / 'home'}", *own, *overrides, "--json"])
        said = capsys.readouterr()
        return (None if code else Path(json.loads(said.out.splitlines()[-1])["path"])), said.out + said.err

    return run


def settings(**values: Any) -> EvaluationSection:
    """The section of the config, with other values."""
    written = yaml.safe_load((Path(data_prep.__file__).parent / "config" / "default.yaml").read_text())
    return EvaluationSection.model_validate(written["evaluation"] | values)


def chosen(folders: dict[str, Path], *names: str) -> list[str]:
    return [f"data_prep.benchmarks.{name}={folders[name]}" for name in names]


def test_their_rows_become_tasks_with_what_is_looked_for(step, folders) -> None:
    folder, _ = step(data_prep, *chosen(folders, *folders))
    tasks = read_tasks(folder)
    assert {name: (task.kind, task.rows) for name, task in tasks.items()} == {
        "gsm8k": ("generate", 2), "mmlu": ("choice", 4), "ifeval": ("instructions", 2), "humaneval": ("code", 1),
    }  # fmt: skip
    asked = list(read_task_rows(tasks["gsm8k"].file, "generate"))
    assert [row["expected"] for row in asked] == ["1000", "1100"]
    assert [item.keys for item in items_of(tasks["ifeval"])] == [("Write no commas.",), ("Write nine thousand words.",)]
    assert len((folder / "gsm8k.examples.jsonl").read_text().splitlines()) == 6


def test_examples_are_drawn_by_the_seed(folders, step) -> None:
    from stages.eval.engines.lm_eval.ask import tasks_of

    folder, _ = step(data_prep, *chosen(folders, "gsm8k"))
    made = [str(path) for path in definitions(read_tasks(folder)["gsm8k"], folder.parent / "made", settings())]

    def drawn(seed: int) -> list[str]:
        (task,) = tasks_of(made, seed)["tasks"].values()
        return [json.dumps(example) for _ in range(3) for example in task.sampler.sample(3)]

    assert drawn(1) == drawn(1) != drawn(2)


def test_what_is_missing_is_named_with_what_brings_it(step, folders, tmp_path: Path) -> None:
    _, said = step(data_prep, "data_prep.benchmarks.gsm8k=/nowhere")
    assert "data_prep.benchmarks.gsm8k: folder /nowhere not found" in said
    assert "hf download --repo-type dataset openai/gsm8k --local-dir /nowhere" in said
    _, said = step(data_prep, "data_prep.benchmarks.gsm9k=/nowhere")
    assert "did you mean 'data_prep.benchmarks.gsm8k'?" in said
    (folders["mmlu"] / "all" / "dev.jsonl").unlink()
    _, said = step(data_prep, *chosen(folders, "mmlu"))
    assert "has no file whose name starts with 'dev'" in said
    (folders["humaneval"] / "openai_humaneval" / "test.jsonl").write_text('{"prompt": "def f():"}\n')
    _, said = step(data_prep, *chosen(folders, "humaneval"))
    assert "test.jsonl:1: no field 'test', which humaneval needs" in said


def test_programs_run_with_leave_only_and_ifeval_needs_its_data(step, folders, monkeypatch) -> None:
    monkeypatch.setattr(nltk.data, "path", [])
    step(data_prep, *chosen(folders, *folders))
    folder, said = step(train, "run.model=null")
    assert folder is None
    assert "'humaneval' runs programs that the model wrote, with your rights, on this machine" in said
    assert "evaluation.run_generated_code=true" in said
    assert "python -m nltk.downloader punkt_tab" in said
    _, said = step(train, "run.model=null", "engine=nemo_evaluator", "evaluation.tasks=[gsm8k]")
    assert "'gsm8k' needs engine=lm_eval" in said


def instructions(step, folders, *rows: dict[str, Any]) -> EvalTask:
    (folders["ifeval"] / "ifeval_input_data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    folder, _ = step(data_prep, *chosen(folders, "ifeval"))
    return read_tasks(folder)["ifeval"]


def asked_for(identifier: str, **kwargs: Any) -> dict[str, Any]:
    return {"key": 1, "prompt": "Do it.", "instruction_id_list": [identifier], "kwargs": [kwargs]}


def test_our_length_and_what_follows_the_thinking_hold_for_every_answer_that_is_written(step, folders, tmp_path):
    folder, _ = step(data_prep, *chosen(folders, *folders))
    for name, filters in (
        ("gsm8k", ["strict-match", "flexible-extract"]),
        ("ifeval", ["none"]),
        ("humaneval", ["none"]),
    ):
        asked = settings(max_new_tokens=4000, num_samples=3, temperature=0.5)
        (file,) = definitions(read_tasks(folder)[name], tmp_path / name, asked)
        made = yaml.safe_load(file.read_text())
        manner = made["generation_kwargs"]
        assert (manner["max_gen_toks"], manner["temperature"], made["repeats"]) == (4000, 0.5, 3)
        assert [one["name"] for one in made["filter_list"]] == filters
        assert all(one["filter"][0] == FINAL_ANSWER for one in made["filter_list"])
    assert overruled("gsm8k", settings(max_new_tokens=4000)) == (
        "gsm8k: answers of up to 4,000 tokens (lm-eval's own definition: 256)"
    )
    assert overruled("gsm8k", settings(max_new_tokens=256)) is None
    assert overruled("mmlu", settings()) is None


@pytest.mark.parametrize(
    "answer", ["7", "<think>a</think> 7\n", "<think>a</think>8<think>7", "<think>7", "a</think>7", ""]
)
def test_lm_evals_filters_are_given_what_follows_the_thinking(answer: str) -> None:
    from lm_eval.filters.extraction import RegexFilter

    options = {key: value for key, value in FINAL_ANSWER.items() if key != "function"}
    assert list(RegexFilter(**options).apply([[answer]], [{}])) == [[(after_thought(answer) or "").strip()]]


def test_instructions_and_programs_are_judged_by_what_follows_the_thinking(step, folders) -> None:
    row = asked_for("keywords:existence", keywords=["thought"])
    task = instructions(step, folders, row)

    def judged(*answers: str) -> dict[str, Any]:
        entry = {"doc_id": 0, "doc": row | {"row": 0}, "resps": [list(answers)], "filter": "none", "metrics": []}
        return read_benchmark(task, [entry])[0]

    assert judged("<think>a thought</think>none")["score"] == 0.0
    assert judged("<think>none</think>a thought")["score"] == 1.0
    assert judged("<think>a thought")["score"] == 0.0
    several = judged(Answer.of("a thought", cut=True), Answer.of("none", cut=False))
    assert (several["score"], several["cut"], several["outputs"]) == (0.5, 0.5, ["a thought", "none"])
    code = EvalTask("humaneval", "code", 1, Path("humaneval.jsonl"))
    for answer, passed in (("<think>a</think>    return a + b\n", 1.0), ("<think>    return a + b\n", 0.0)):
        logged = {"doc_id": 0, "doc": HUMANEVAL[0], "resps": [[answer]], "filter": "none", "metrics": []}
        assert read_benchmark(code, [logged])[0]["score"] == passed


@pytest.mark.parametrize("word", ["+", "(", "a[b", "*"])
def test_a_keyword_that_is_no_regular_expression_is_meant_as_it_stands(step, folders, tmp_path, word: str) -> None:
    task = instructions(step, folders, asked_for("keywords:existence", keywords=[word, "then"]))
    definitions(task, tmp_path / "made", settings())
    (row,) = map(json.loads, (tmp_path / "made" / "ifeval.test.jsonl").read_text().splitlines())
    assert follows(row, f"first {word} then") and not follows(row, "first then")


def test_a_prompt_that_no_check_can_judge_is_named(step, folders, tmp_path) -> None:
    task = instructions(step, folders, IFEVAL[0], asked_for("keywords:nonsense"))
    with pytest.raises(UserError, match=r"ifeval\.jsonl: row 2: lm-eval cannot judge this prompt: KeyError"):
        definitions(task, tmp_path / "made", settings())


def test_an_answer_ends_at_a_benchmarks_words_and_its_thought_does_not() -> None:
    from stages.eval.engines.lm_eval.ask import CutAnswers, QuietLM

    lm = QuietLM.__new__(QuietLM)
    lm.ids, lm.cut = {"asked <think>\n": [1], "asked": [2]}, CutAnswers({0})

    def answer(prompt: str, text: str, *, ids: tuple[int, ...] = (5, 5, 5)) -> tuple[str, bool]:
        lm.cut.note(list(ids), 3, ended=False)
        lm.cut.add_partial("generate_until", (prompt, {}), text)
        made = lm._answer(prompt, {"until": ["Question:", "</s>"]}, text)
        return str(made), made.cut

    assert answer("asked <think>\n", "the Question: is") == ("<think>the Question: is", True)
    assert answer("asked <think>\n", "a Question:</think>7 Question: b") == ("<think>a Question:</think>7 ", False)
    assert answer("asked", "7", ids=(5, 0, 0)) == ("7", False)
    assert answer("asked", "7", ids=(5, 5)) == ("7", False)
    assert answer("no chat", "x = 1") == ("x = 1", True)


def test_nothing_to_ask_is_an_error_before_anything_is_asked(step, folders) -> None:
    (folders["gsm8k"] / "main" / "test.jsonl").write_text("")
    _, said = step(data_prep, *chosen(folders, "gsm8k"))
    assert "the task 'gsm8k' has no rows" in said
    (folders["mmlu"] / "all" / "dev.jsonl").write_text("".join(json.dumps(row) + "\n" for row in MMLU[:5]))
    _, said = step(data_prep, *chosen(folders, "mmlu"))
    assert "0 example rows of the field 'virology', but lm-eval shows 5 with each question" in said
    (folders["mmlu"] / "all" / "test.jsonl").write_text(json.dumps(MMLU[0] | {"subject": "railways"}) + "\n")
    _, said = step(data_prep, *chosen(folders, "mmlu"))
    assert "test.jsonl:1: no field of MMLU: its subject is 'railways'" in said
    _, said = step(train, "run.model=null", "evaluation.tasks=[]")
    assert "evaluation.tasks" in said and "at least 1 item" in said


def test_several_answers_need_a_temperature(step, folders) -> None:
    _, said = step(train, "run.model=null", "evaluation.num_samples=4")
    assert "num_samples 4 needs evaluation.temperature above 0, such as 0.7" in said
    step(data_prep, *chosen(folders, "gsm8k"))
    _, said = step(train, "run.model=null", "engine=nemo_evaluator", "evaluation.temperature=1")
    assert "set engine=lm_eval, or evaluation.temperature=0 evaluation.num_samples=1" in said


def test_a_program_passes_where_it_ends_well(monkeypatch) -> None:
    monkeypatch.setattr("stages.eval.benchmarks.SECONDS", 2)
    assert passes("import math\nassert math.sqrt(4) == 2")
    assert not passes("assert 1 == 2")
    assert not passes("while True: pass")
    assert not passes("open('large', 'w').write('x' * 3_000_000)")


def test_both_metrics_of_an_answer_are_kept(step, folders) -> None:
    folder, _ = step(data_prep, *chosen(folders, "gsm8k"))
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
    step(data_prep, *chosen(folders, *folders))
    folder, said = step(
        train, "run.model=null", "evaluation.run_generated_code=true", "evaluation.max_new_tokens=8",
        "evaluation.num_samples=2", "evaluation.temperature=1.0",
    )  # fmt: skip
    assert "gsm8k: answers of up to 8 tokens (lm-eval's own definition: 256)" in said
    assert folder is not None, said
    results = json.loads((folder / "results.json").read_text())
    scores = {entry["task"]: entry for entry in results["scores"]}
    assert {name: (entry["metric"], entry["n"]) for name, entry in scores.items()} == {
        "gsm8k": ("right", 2), "mmlu": ("acc", 4), "ifeval": ("followed", 2), "humaneval": ("passed", 1),
    }  # fmt: skip
    assert set(scores["gsm8k"]["harness"]) == {"exact_match,strict-match", "exact_match,flexible-extract"}
    assert scores["mmlu"]["harness"] == {"acc": scores["mmlu"]["value"]}
    assert set(scores["ifeval"]["harness"]) >= {"prompt_level_strict_acc"}
    for name in ("gsm8k", "ifeval", "humaneval"):
        assert set(scores[name]["pass_at_k"]) == {"1", "2"}
        assert scores[name]["pass_at_k"]["1"] == pytest.approx(scores[name]["value"])
        assert 0.5 <= scores[name]["cut"] <= 1.0  # random weights hardly stop by themselves
        rows = [json.loads(line) for line in (folder / "samples" / "random" / f"{name}.jsonl").read_text().splitlines()]
        assert any(len(set(row["outputs"])) == 2 for row in rows), "two answers that were drawn are the same"
    asked = [json.loads(line) for line in (folder / "samples" / "random" / "mmlu.jsonl").read_text().splitlines()]
    assert [row["question"] for row in asked] == [row["question"] for row in MMLU[3:7]]
