"""500 rows in 25 forms of public data sets: what is learnt of them, and asked, is what their makers meant."""

import json
from collections import Counter
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from public_forms import ROWS, TEMPLATE, chat_forms, pair_forms, problem_forms, write_lines
from support import nemotron
from tokenizers import Tokenizer

pytestmark = pytest.mark.slow
PREPARE = nemotron("super3", "data", "prep")
TINY = ["-c", "tiny", "data_prep.workers=1", "data_prep.max_lost=1"]
FORMS = 25


def learnt_in(folder: Path) -> Counter[str]:
    """The learnt pieces of packed rows, read with libraries alone. The mask is that of the labels, one token ahead."""
    tokenizer, found = Tokenizer.from_file(str(folder / "tokenizer" / "tokenizer.json")), Counter[str]()
    for row in pq.read_table(folder / "train.parquet").to_pylist():
        learnt, run = [0, *row["loss_mask"][:-1]], list[int]()
        for token, counts in zip([*row["input_ids"], 0], [*learnt, 0], strict=True):
            if counts:
                run.append(token)
            elif run:
                found[tokenizer.decode(run, skip_special_tokens=False)] += 1
                run = []
    return found


def test_the_forms_are_500_rows(tmp_path: Path) -> None:
    chats, problems, pairs = chat_forms(tmp_path), problem_forms(tmp_path), pair_forms(tmp_path)
    assert len(chats) + len(problems) + len(pairs) == FORMS
    assert len({form.path for form in chats.values()} | set(problems) | set(pairs)) == FORMS
    assert FORMS * ROWS == 500


def test_what_is_learnt_of_chats_is_what_their_makers_meant(run, tmp_path: Path) -> None:
    (tmp_path / "own.jinja").write_text(TEMPLATE)
    forms = chat_forms(tmp_path)
    source = f"data_prep.source=[{','.join(form.path.name for form in forms.values())}]"
    size = "data_prep.pack_size=2048"
    shares = "data_prep.split={train: 1, valid: 0, test: 0}"
    said = run(*PREPARE, "sft", *TINY, source, size, shares, "data_prep.chat_template=own.jinja").stderr
    kept = sum(form.kept for form in forms.values())
    assert f"rows: {len(forms) * ROWS} read; {kept} kept" in said
    assert "lose theirs" not in said
    found = learnt_in(tmp_path / "home" / "artifacts" / "super3-sft-data" / "v1")
    wanted = sum((form.learnt for form in forms.values()), Counter[str]())
    assert wanted.total() > 500
    for name, form in forms.items():
        assert {text: found[text] for text in form.learnt} == dict(form.learnt), name
    assert found == wanted, "nothing else is learnt"


def test_what_is_asked_and_expected_is_what_the_makers_of_problems_meant(run, tmp_path: Path) -> None:
    problems = problem_forms(tmp_path)
    write_lines(tmp_path / "geometry.jsonl", [{"problem": "<image>?", "answer": "4", "images": ["a.png"]}] * 3)
    source = f"data_prep.source=[{','.join([path.name for path in problems] + ['geometry.jsonl'])}]"
    fields = ["data_prep.question_field=problem", "data_prep.answer_field=answer", "data_prep.on_bad_row=reject"]
    wanted = sorted(pair for pairs in problems.values() for pair in pairs)
    train, test = (f"data_prep.split={{train: {share}, valid: 0, test: {1 - share}}}" for share in (1, 0))
    for stage, shares, file, names in (
        ("rl", train, "train.jsonl", ("question", "expected_answer")),
        ("eval", test, "questions.jsonl", ("question", "expected")),
    ):
        said = run(*PREPARE, stage, *TINY, source, *fields, shares).stderr
        assert "3 an image next to the text" in said
        made = tmp_path / "home" / "artifacts" / f"super3-{stage}-data" / "v1" / file
        rows = [json.loads(line) for line in made.read_text().splitlines()]
        assert sorted((row[names[0]], row[names[1]]) for row in rows) == wanted, stage
        if stage == "rl":
            asked = [row["responses_create_params"]["input"][-1] for row in rows]
            assert asked == [{"role": "user", "content": row["question"]} for row in rows]


def test_the_better_and_the_worse_answers_of_pairs_are_theirs(run, tmp_path: Path) -> None:
    pairs = pair_forms(tmp_path)
    source = f"data_prep.source=[{','.join(path.name for path in pairs)}]"
    shares = "data_prep.split={train: 1, valid: 0, test: 0}"
    run(*PREPARE, "rl", *TINY, source, shares, "data_prep.pairs=true")
    (made,) = (tmp_path / "home" / "artifacts").glob("super3-rl-*/v1/train.jsonl")
    rows = [json.loads(line) for line in made.read_text().splitlines()]
    found = sorted(
        (row["prompt"][-1]["content"], row["chosen"][0]["content"], row["rejected"][0]["content"]) for row in rows
    )
    assert found == sorted((prompt[0]["content"], *said) for some in pairs.values() for prompt, *said in some)
