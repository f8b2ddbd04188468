"""Rows that point into another data set are filled in from it, and from nowhere else."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from nemotron_data.prep.shards import Setting
from nemotron_data.rejects import Refused
from nemotron_data.sources.input_file import InputFile, local_file
from nemotron_shared.system.errors import UserError
from stages.rl.placeholders import (
    DATASETS,
    SOURCES,
    SourceTable,
    answer_text,
    bare_question,
    fill_template,
    is_placeholder,
    lay_out,
    resolve,
    source_files,
)

DAPO_TEXT = (
    "Solve the problem. End with Answer.\n\nA goat eats 3 turnips.\n\nHow many are 7 goats' turnips?\n\nRemember."
)


class Listed:
    """A source set in memory."""

    def __init__(self, *rows: tuple[Any, Any]) -> None:
        self.rows = rows

    def row(self, index: int) -> tuple[Any, Any]:
        if not 0 <= index < len(self.rows):
            raise IndexError(f"row {index} of {len(self.rows)} rows")
        return self.rows[index]


def source_row(text: Any, answer: Any = "34") -> tuple[Any, Any]:
    return [{"role": "user", "content": text}], {"ground_truth": answer, "style": "rule"}


TABLES = {
    "dapo": Listed(source_row("no paragraphs"), source_row(DAPO_TEXT, '["21"]')),
    "skywork": Listed(source_row("What is 17+17?", '["34"]')),
}


def placeholder(dataset: str, row: Any, template: Any, **more: Any) -> dict[str, Any]:
    marker = {"row": row, "question_template": template}
    return {"id": 7, "_hf_placeholder": marker, "dataset": dataset, "agent_ref": {"name": "math"}, **more}


@pytest.mark.parametrize("dataset", ["nano_v3_sft_profiled_dapo17k", "super_v3_lcsft_step1000_dapo17k"])
def test_a_dapo_question_stands_between_prefix_and_suffix(dataset: str) -> None:
    row = placeholder(
        dataset, 1, {"prefix": "Think.\n\n", "suffix": "\n\nBox it.\n\n"}, responses_create_params={"x": 1}
    )
    full = "Think.\n\nA goat eats 3 turnips.\n\nHow many are 7 goats' turnips?\n\nBox it."
    assert resolve(row, TABLES) == {
        "id": 7,
        "dataset": dataset,
        "agent_ref": {"name": "math"},
        "question": full,
        "expected_answer": "21",
        "responses_create_params": {"input": [{"role": "user", "content": full}]},
    }
    assert "_hf_placeholder" in row, "the given row must not be changed"


@pytest.mark.parametrize("template", ["Box it: {question}!", {"template": "Box it: {question}!", "prefix": None}])
@pytest.mark.parametrize("dataset", ["nano_v3_sft_profiled_skywork_no_omni", "super_v3_lcsft_step1000_skyworks"])
def test_a_skywork_question_stays_bare_beside_its_prompt(dataset: str, template: Any) -> None:
    made = resolve(placeholder(dataset, 0, template), TABLES)
    assert made["question"] == "What is 17+17?"
    assert made["responses_create_params"] == {"input": [{"role": "user", "content": "Box it: What is 17+17?!"}]}
    assert made["expected_answer"] == "34"
    assert list(made)[:3] == ["id", "dataset", "agent_ref"]


HUB = {"dapo": ("BytedTsinghua-SIA/DAPO-Math-17k", "train"), "skywork": ("Skywork/Skywork-OR1-RL-Data", "math")}


def named(source: str, row: Any, **marker: Any) -> dict[str, Any]:
    dataset, split = HUB[source]
    return {"_hf_question_placeholder": {"dataset": dataset, "split": split, "row": row, **marker}, "id": 7}


def test_a_marker_that_names_its_set_has_the_text_before_and_after() -> None:
    asked = {"input": [{"role": "user", "content": "?"}, {"role": "user", "content": "Hurry."}], "temperature": 0.7}
    hidden = {
        "matched_sources": [{"name": "a", "expected_answer": "?"}, {"name": "b"}],
        "responses_create_params": asked,
    }
    row = named("dapo", 1, mode="canonical", lead="Think.\n", trail="\nBox it.\n", prefix="no") | hidden
    full = "Think.\nA goat eats 3 turnips.\n\nHow many are 7 goats' turnips?\nBox it.\n"
    assert resolve(row, TABLES) == {
        "id": 7,
        "question": full,
        "expected_answer": "21",
        "matched_sources": [{"name": "a", "expected_answer": "21"}, {"name": "b"}],
        "responses_create_params": {
            "input": [{"role": "user", "content": full}, {"role": "user", "content": "Hurry."}],
            "temperature": 0.7,
        },
    }
    assert asked["input"][0]["content"] == "?", "the given row must not be changed"
    made = resolve(named("skywork", 0, prefix="[", suffix="]", lead="no"), TABLES)
    assert made == {
        "id": 7,
        "question": "[What is 17+17?]",
        "expected_answer": "34",
        "responses_create_params": {"input": [{"role": "user", "content": "[What is 17+17?]"}]},
    }


def test_every_data_set_of_the_table_has_a_source() -> None:
    assert set(DATASETS.values()) == set(SOURCES)


@pytest.mark.parametrize(
    ("text", "bare"), [("one", "one"), ("one\n\ntwo", "one\n\ntwo"), ("1\n\n2\n\n3", "2"), ("1\n\n2\n\n\n\n3", "2\n\n")]
)
def test_only_a_wrapped_text_loses_its_first_and_last_paragraph(text: str, bare: str) -> None:
    assert bare_question(text) == bare


def test_one_half_of_a_dapo_template_is_enough() -> None:
    assert fill_template("dapo", {"prefix": "Q: ", "suffix": None}, "2+2?\n\n") == "Q: 2+2?"
    assert fill_template("dapo", {"suffix": " =?"}, "2+2") == "2+2 =?"


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        ("34", "34"),
        ("2", "2"),
        ("007", "007"),
        ("1.10", "1.10"),
        ("1e5", "1e5"),
        ("12345678901234567890123", "12345678901234567890123"),
        ('"34"', "34"),
        ('["34"]', "34"),
        (' ["34", "35"]\n', "34"),
        ("[1.10, 2]", "1.10"),
        ('{"value": "x", "other": 1}', "x"),
        ("[true]", "true"),
        ("[]", "[]"),
        ("{}", "{}"),
        ("true", "true"),
        ("\\frac{1}{2}", "\\frac{1}{2}"),
        ("[0, 1)", "[0, 1)"),
        (34, "34"),
        (["34"], "34"),
        ([0.5], "0.5"),
    ],
)
def test_an_answer_is_the_first_value_and_always_text(raw: Any, text: str) -> None:
    assert answer_text(raw) == text


@pytest.mark.parametrize("raw", [None, "", "  ", [None], '[""]', "[null]"])
def test_no_answer_is_no_row(raw: Any) -> None:
    with pytest.raises(Refused, match="placeholder: no answer in the source row"):
        answer_text(raw)


VALUES = some.recursive(
    some.none() | some.booleans() | some.integers() | some.floats() | some.text(max_size=5),
    lambda inner: some.lists(inner, max_size=3) | some.dictionaries(some.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)
TEMPLATES = VALUES | some.fixed_dictionaries({"prefix": VALUES, "suffix": VALUES}) | some.just("{question}")
MARKERS = VALUES | some.fixed_dictionaries({"row": some.integers(-1, 2) | VALUES, "question_template": TEMPLATES})
PROMPTS = VALUES | some.lists(some.fixed_dictionaries({"content": VALUES | some.just("a\n\nb\n\nc")}), max_size=2)
ANSWERS = VALUES | some.fixed_dictionaries({"ground_truth": VALUES | some.just("[1.50]")})


@settings(max_examples=500, deadline=None)
@given(some.sampled_from([*DATASETS, "mine"]), MARKERS, PROMPTS, ANSWERS)
def test_any_placeholder_is_resolved_or_refused(dataset: str, marker: Any, prompt: Any, answer: Any) -> None:
    tables = {"dapo": Listed((prompt, answer)), "skywork": Listed((prompt, answer))}
    try:
        made = resolve({"dataset": dataset, "_hf_placeholder": marker}, tables)
    except Refused:
        return
    assert isinstance(made["question"], str)
    assert isinstance(made["expected_answer"], str)
    assert isinstance(made["responses_create_params"]["input"][0]["content"], str)


@settings(max_examples=200, deadline=None)
@given(
    some.sampled_from(sorted(HUB)),
    some.dictionaries(some.sampled_from(["mode", "lead", "trail", "prefix"]), VALUES),
    VALUES,
)
def test_any_marker_that_names_its_set_is_resolved_or_refused(source: str, marker: dict[str, Any], given: Any) -> None:
    row = named(source, 0, **marker) | {"responses_create_params": given, "matched_sources": given}
    try:
        made = resolve(row, TABLES)
    except Refused:
        return
    assert made["responses_create_params"]["input"][0]["content"] == made["question"]


DAPO = "nano_v3_sft_profiled_dapo17k"
SKYWORK = "nano_v3_sft_profiled_skywork_no_omni"


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        (placeholder("mine", 0, {}), "placeholder: unknown data set"),
        (placeholder(["mine"], 0, {}), "placeholder: unknown data set"),  # type: ignore[arg-type]
        ({"_hf_placeholder": {"row": 0}}, "placeholder: unknown data set"),
        ({"dataset": DAPO, "_hf_placeholder": 3}, "placeholder: not an object"),
        (named("dapo", 0, dataset="mine"), "placeholder: unknown data set"),
        (named("dapo", 0, dataset=["mine"]), "placeholder: unknown data set"),
        (named("skywork", 0, split="code"), "placeholder: unknown split"),
        (named("skywork", 0, prefix=1), "placeholder: unusable question_template"),
        (named("skywork", "0"), "placeholder: no row number"),
        ({"_hf_question_placeholder": 3}, "placeholder: not an object"),
        (placeholder(DAPO, 2, {"prefix": ""}), "placeholder: no such row in its source set"),
        (placeholder(DAPO, -1, {"prefix": ""}), "placeholder: no such row in its source set"),
        (placeholder(DAPO, "1", {"prefix": ""}), "placeholder: no row number"),
        (placeholder(DAPO, None, {"prefix": ""}), "placeholder: no row number"),
        (placeholder(DAPO, True, {"prefix": ""}), "placeholder: no row number"),
        (placeholder(DAPO, 0, None), "placeholder: unusable question_template"),
        (placeholder(DAPO, 0, {}), "placeholder: unusable question_template"),
        (placeholder(DAPO, 0, {"prefix": 1, "suffix": ""}), "placeholder: unusable question_template"),
        (placeholder(SKYWORK, 0, "no place"), "placeholder: unusable question_template"),
        (placeholder(SKYWORK, 0, {"prefix": ""}), "placeholder: unusable question_template"),
    ],
)
def test_what_cannot_be_resolved_is_refused_for_a_fixed_reason(row: dict[str, Any], reason: str) -> None:
    with pytest.raises(Refused) as refused:
        resolve(row, TABLES)
    assert refused.value.reason == reason


@pytest.mark.parametrize("prompt", [None, [], [{}], [{"content": " "}], [{"content": 5}], "text", ["text"]])
def test_a_source_row_without_a_question_is_refused(prompt: Any) -> None:
    tables = {"skywork": Listed((prompt, {"ground_truth": "1"}))}
    with pytest.raises(Refused, match="placeholder: no question in the source row"):
        resolve(placeholder(SKYWORK, 0, "{question}"), tables)


def test_a_source_set_that_was_not_given_says_how_to_give_it() -> None:
    with pytest.raises(Refused, match="its source set is not configured") as refused:
        resolve(placeholder(SKYWORK, 0, "{question}"), {})
    assert "data_prep.placeholder_sources.skywork=" in str(refused.value.finding.remedy)


def test_null_is_no_marker() -> None:
    assert not is_placeholder({"_hf_placeholder": None})
    assert not is_placeholder({})
    assert is_placeholder({"_hf_placeholder": {}})
    assert is_placeholder({"_hf_placeholder": None, "_hf_question_placeholder": {}})


def inputs(paths: list[Path]) -> list[InputFile]:
    return [local_file(path) for path in paths]


def write_source(path: Path, count: int, rows_per_group: int, first: int = 0) -> Path:
    numbers = range(first, first + count)
    rows = [{"id": i, "prompt": source_row(f"Q{i}")[0], "reward_model": {"ground_truth": str(i)}} for i in numbers]
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows), path, row_group_size=rows_per_group)
    return path


def table(tmp_path: Path, paths: list[Path], shard_bytes: int = 1 << 20) -> SourceTable:
    setting = Setting(tmp_path / "run" / "shards", "test", "reject", 1, "local", lambda line: None)
    return SourceTable(lay_out({"dapo": inputs(paths)}, setting, shard_bytes)["dapo"])


@pytest.mark.parametrize("shard_bytes", [5000, 1 << 20])
def test_rows_are_numbered_through_all_shards_of_all_files(tmp_path: Path, shard_bytes: int) -> None:
    files = [write_source(tmp_path / "a.parquet", 25, 10), write_source(tmp_path / "b.parquet", 7, 3, first=25)]
    found = table(tmp_path, files, shard_bytes)
    for index in (31, 0, 24, 25, 9, 10, 30, 5):
        assert found.row(index) == ([{"content": f"Q{index}", "role": "user"}], {"ground_truth": str(index)})
    for index in (-1, 32):
        with pytest.raises(IndexError, match=f"row {index} of 32 rows"):
            found.row(index)


def test_a_source_set_without_rows_has_no_row(tmp_path: Path) -> None:
    empty = pa.table({"prompt": pa.array([], pa.string()), "reward_model": pa.array([], pa.string())})
    pq.write_table(empty, tmp_path / "a.parquet")
    with pytest.raises(IndexError, match="row 0 of 0 rows"):
        table(tmp_path, [tmp_path / "a.parquet"]).row(0)


def test_a_source_needs_its_two_columns(tmp_path: Path) -> None:
    pq.write_table(pa.table({"prompt": ["x"]}), tmp_path / "a.parquet")
    with pytest.raises(UserError, match="no column 'reward_model'"):
        table(tmp_path, [tmp_path / "a.parquet"])
    (tmp_path / "b.parquet").write_bytes(b"no Parquet")
    with pytest.raises(UserError, match="not a readable Parquet file"):
        table(tmp_path, [tmp_path / "b.parquet"])


@pytest.mark.parametrize(
    ("present", "found"),
    [
        (["data/math-1.parquet", "data/math-0.parquet", "data/a"], ["data/math-0.parquet", "data/math-1.parquet"]),
        (["data/all.parquet", "math/0.parquet"], ["data/all.parquet"]),
        (["math/0.parquet", "default/math/0.parquet"], ["math/0.parquet"]),
        (["default/math/0.parquet", "x.parquet"], ["default/math/0.parquet"]),
        (["x.parquet", "notes/y.parquet"], ["x.parquet"]),
    ],
)  # fmt: skip
def test_the_files_of_a_split_are_looked_for_in_order(tmp_path: Path, present: list[str], found: list[str]) -> None:
    for name in present:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    assert [file.path for file in source_files(str(tmp_path), "math")] == [f"{tmp_path}/{name}" for name in found]


def test_a_file_is_its_own_source_set_and_nothing_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "x.parquet").touch()
    assert source_files(str(tmp_path / "x.parquet"), "math") == inputs([tmp_path / "x.parquet"])
    with pytest.raises(UserError, match=r"no Parquet file found.*\n.*data/math-\*.parquet"):
        source_files(str(tmp_path / "nowhere"), "math")
