"""Names of files on the command line of `nemotron finetune`, whatever signs they hold."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from nemotron_app.finetune.command import Comparison, _example, _is_override, advice
from nemotron_app.finetune.plan import _warn_of_held_out, name_of
from nemotron_app.wording import last_turn
from nemotron_data.verifier import AS_TAUGHT
from nemotron_shared.artifacts import Artifact


def test_a_file_whose_name_looks_like_an_override_is_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert _is_override("train.train_iters=5") and _is_override("a=b.jsonl")
    (tmp_path / "a=b.jsonl").touch()
    assert not _is_override("a=b.jsonl")


@pytest.mark.parametrize(
    ("names", "told"),
    [
        (["train.jsonl", "validation.jsonl"], "validation.jsonl will be trained on, too"),
        (["a/chats-train.csv", "a/chats_dev.csv", "test.csv"], "chats_dev.csv, test.csv will be trained on, too"),
        (["test.jsonl"], None),
        (["contest.jsonl", "evaluation.txt", "latest.jsonl"], None),
    ],
)
def test_a_file_that_is_named_as_held_out_is_told(
    names: list[str], told: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    _warn_of_held_out([f"/data/{name}" for name in names])
    said = capsys.readouterr().err
    assert told in said if told else not said


@pytest.mark.parametrize(
    ("artifact", "verb", "name"),
    [
        ("super3-pretrain-model", "train", "super3"),
        ("qwen3-sft-model", "train", "qwen3"),
        ("external-my-qwen3", "", "my-qwen3"),
        ("external-super3-sft-model", "", "super3"),
        ("external-sft-model", "", "sft-model"),
        ("hf-qwen--qwen3-8b", "import", "qwen3-8b"),
        ("hf-org--qwen3-sft-model", "import", "qwen3"),
        ("megatron-iter_0002000", "import", "iter_0002000"),
        ("external-my--model", "", "my--model"),
        ("bought", "import", "bought"),
        ("external---", "", "model"),
        ("external-" + "x" * 90, "", "x" * 60),
    ],
)
def test_what_is_made_of_a_model_is_called_after_it(artifact: str, verb: str, name: str) -> None:
    manifest = SimpleNamespace(name=artifact, producer=SimpleNamespace(verb=verb))
    assert name_of(cast(Artifact, SimpleNamespace(manifest=manifest, is_external=not verb))) == name


def results_of(tmp_path: Path, **answers: dict[str, list[bool | None]]) -> Artifact:
    """An evaluation in which the model before and the one after had these answers of each task right."""
    scores, count = [], iter(range(1000))
    for task, by_model in answers.items():
        for model, right in by_model.items():
            (tmp_path / "samples" / model).mkdir(parents=True, exist_ok=True)
            samples = [
                {"question": f"a\u2028{at}", "expected": "c", "output": f"d\x85{next(count)}", "right": one}
                for at, one in enumerate(right)
            ]
            text = "".join(json.dumps(sample, ensure_ascii=False) + "\n" for sample in samples)
            (tmp_path / "samples" / model / f"{task}.jsonl").write_text(text, encoding="utf-8")
            judged = [one for one in right if one is not None]
            counts = {"asked": len(right), "judged": len(judged), "right": sum(judged), "ci95": None}
            scores.append({"task": task, "model": model, "value": 2.0, "n": len(right), "answers": counts})
    (tmp_path / "results.json").write_text(json.dumps({"scores": scores, "comparisons": []}))
    return cast(Artifact, SimpleNamespace(path=tmp_path))


def data(*splits: str) -> Artifact:
    counts = {"train": {"conversations": 264, "sequences": 291}, "valid": {"conversations": 36, "sequences": 41}}
    about = SimpleNamespace(metadata={"splits": {name: counts[name] for name in splits}})
    return cast(Artifact, SimpleNamespace(manifest=about))


def test_texts_with_other_ends_of_lines_are_compared(tmp_path: Path) -> None:
    found = Comparison.read(results_of(tmp_path, held_out={"base": [True], "after": [True]}), data("train", "valid"))
    assert found.answers[0]["question"] == "a\u20280"


def test_answers_are_counted_marked_and_advised_on(tmp_path: Path) -> None:
    taught, held_out = [True] * 3 + [False] * 7, [False] * 9 + [True]
    results = results_of(
        tmp_path, held_out={"base": [False] * 10, "after": held_out}, taught={"base": [False] * 10, "after": taught}
    )
    found = Comparison.read(results, data("train", "valid"))
    told = "\n".join(found.lines())
    assert "of the taught rows, 10 answers judged: 0 right before, 3 after" in told
    assert "of rows held out, 10 answers judged: 0 right before, 1 after" in told
    assert AS_TAUGHT in told and told.count("[wrong]") == 8  # as many as are shown
    assert found.is_untaught and found.as_json()["right"]["taught"]["after"] == 3
    assert advice(found, "nemotron finetune it")[1] == "  nemotron finetune it"


def test_known_answers_need_no_more_steps(tmp_path: Path) -> None:
    known = {"base": [False] * 10, "after": [True] * 8 + [False] * 2}
    few = results_of(tmp_path, held_out={"base": [False] * 10, "after": [False] * 10}, taught=known)
    found = Comparison.read(few, data("train", "valid"))
    (told,) = advice(found, "nemotron finetune it")
    assert not found.is_untaught and "in other words" in told
    # without held-out rows, those of the one task were taught
    alone = Comparison.read(results_of(tmp_path, held_out=known), data("train"))
    assert list(alone.right) == ["taught"] and advice(alone, "nemotron finetune it") == []


def test_open_answers_are_not_judged(tmp_path: Path) -> None:
    open_ones = results_of(tmp_path, held_out={"base": [None] * 10, "after": [None] * 10})
    found = Comparison.read(open_ones, data("train", "valid"))
    told = "\n".join(found.lines())
    assert "none is marked right or wrong, because they are open" in told and "right before" not in told
    assert "[an open answer]" in told and not found.is_untaught and advice(found, "it") == []


SYSTEM = "<|im_start|>system\nUse the tools.\n\nCall them within <tool_call></tool_call> XML tags.<|im_end|>\n"
ASKED = f"{SYSTEM}<|im_start|>user\nIs the river high?<|im_end|>\n<|im_start|>assistant\n"
CALL = '<tool_call>\n{"name": "river_level", "arguments": {}}\n</tool_call>'
RESULT = "<|im_start|>user\n<tool_response>\n92 cm\n</tool_response><|im_end|>\n<|im_start|>assistant\n"
ANSWERED = f"{ASKED}{CALL}<|im_end|>\n{RESULT}"


def test_examples_show_what_was_asked_once_and_under_headings(tmp_path: Path) -> None:
    after_call = {"question": ANSWERED, "expected": "<think>\nbelow 120\n</think>\n\nIt is fine."}
    rows = {
        "held_out": [after_call | {"right": False}, {"question": "Q", "expected": "A", "right": True}],
        "held_out_calls": [{"question": ASKED, "expected": CALL, "score": 1.0}],
        "held_out_after_calls": [after_call | {"score": 0.0}],
    }
    scores = []
    for task, found in rows.items():
        for model, output in {"base": "\n\n", "after": "</think></think>So."}.items():
            (tmp_path / "samples" / model).mkdir(parents=True, exist_ok=True)
            text = "".join(json.dumps(row | {"output": output}) + "\n" for row in found)
            (tmp_path / "samples" / model / f"{task}.jsonl").write_text(text)
            scores.append({"task": task, "model": model, "value": 1.0, "n": 41})
    (tmp_path / "results.json").write_text(json.dumps({"scores": scores, "comparisons": []}))
    results = cast(Artifact, SimpleNamespace(path=tmp_path))
    lines = Comparison.read(results, data("train", "valid")).lines()
    assert "36 of 300 conversations are held out, as 41 texts" in "\n".join(lines)
    assert lines[lines.index("tool calls, held out:") - 1 :] == [
        "",
        "tool calls, held out:",
        "",
        "  Is the river high?",
        '    expected  <tool_call> {"name": "river_level", "arguments": {}} </tool_call>',
        "    before    (nothing)",
        "    after     So.   [right]",
        "",
        "answers after the result of a call, held out:",
        "",
        "  Is the river high?",
        "    result    92 cm",
        "    expected  It is fine.",
        "    before    (nothing)",
        "    after     So.   [wrong]",
        "",
        "last answers, held out:",
        "",
        "  Q",
        "    expected  A",
        "    before    (nothing)",
        "    after     So.   [right]",
    ]


@pytest.mark.parametrize(
    ("question", "turn"),
    [
        (ASKED, ("Is the river high?", [])),
        (f"{ASKED}<think>\n", ("Is the river high?", [])),
        (ANSWERED, ("Is the river high?", ["92 cm"])),
        (f"{ANSWERED}Fine.<|im_end|>\n{ASKED.removeprefix(SYSTEM)}", ("Is the river high?", [])),
        (ASKED + "<|im_end|>\n<|im_start|>tool\n4<|im_end|>\n<|im_start|>assistant\n", ("Is the river high?", ["4"])),
        ("User:\n2+2?\n\nAssistant:\n", ("User:\n2+2?\n\nAssistant:", [])),
    ],
)  # fmt: skip
def test_the_last_turn_of_a_user_is_found(question: str, turn: tuple[str, list[str]]) -> None:
    assert last_turn(question) == turn


def test_a_thought_without_an_end_is_no_answer() -> None:
    said = list(_example({"question": "Q<think>", "expected": "A", "before": "", "after": "so", "right": None}))
    assert said[-1] == "    after     (a thought without an end)   [an open answer]"
