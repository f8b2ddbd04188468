"""From files of rows to the prompts of each split."""

import json
from collections.abc import Callable
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pydantic import ValidationError
from support import last_values_win

from nemotron_shared.system.errors import UserError
from stages.rl import data_prep
from stages.rl.prompts import rows_held_out
from stages.rl.schema import Holdout

main = last_values_win(data_prep.main)

MATH = {"type": "responses_api_agents", "name": "math_with_judge_simple_agent"}
Prepare = Callable[..., Path]


def gym_row(number: int, **more: Any) -> dict[str, Any]:
    turns = [{"role": "user", "content": f"{number}+{number}?"}]
    fields = {"question": f"{number}+{number}?", "expected_answer": str(2 * number)}
    return {"responses_create_params": {"input": turns}, **fields, "agent_ref": MATH, **more}


def write_lines(path: Path, rows: list[Any]) -> Path:
    lines = [row if isinstance(row, bytes) else json.dumps(row).encode() for row in rows]
    path.write_bytes(b"".join(line + b"\n" for line in lines))
    return path


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_bytes().splitlines()] if path.exists() else []


def numbers(path: Path) -> list[int]:
    return [int(row["expected_answer"]) // 2 for row in read(path)]


@pytest.fixture
def prepare(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Prepare:
    """Run the step on a source, give the artifact's folder; a refusal raises its message."""

    def run(source: Path, *overrides: str) -> Path:
        settings = [
            "-c",
            "local",
            f"data_prep.source={source}",
            f"run.home={tmp_path / 'home'}",
            "data_prep.workers=1",
            *overrides,
        ]
        code = main([*settings, "--json"])
        said = capsys.readouterr()
        if code:
            raise UserError(said.err)
        return Path(json.loads(said.out.splitlines()[-1])["path"])

    return run


ALL_TO_TRAIN = "data_prep.split={train: 1.0, valid: 0.0, test: 0.0}"


def test_a_row_that_needs_nothing_keeps_its_bytes(tmp_path: Path, prepare: Prepare) -> None:
    number = b'"pass_rate": 1.10, "seed": 123456789012345678901234567890, "text": "\\u00fc \xe2\x80\xa8"}'
    line = json.dumps(gym_row(1)).encode().removesuffix(b"}") + b" ,  " + number
    made = prepare(write_lines(tmp_path / "a.jsonl", [b"\xef\xbb\xbf" + line, b"  " + line + b" \r"]), ALL_TO_TRAIN)
    assert (made / "train.jsonl").read_bytes() == (line + b"\n") * 2


@pytest.mark.parametrize("name", ["a.jsonl", "a.json"])
def test_an_answer_that_is_a_number_keeps_its_digits(tmp_path: Path, prepare: Prepare, name: str) -> None:
    numbers = ["0.1", "1.50", "3.0", "1e21", "3.14159265358979323846", "9007199254740993", "9007199254740993.0", "-7"]
    numbers.append("123456789012345678901234567890")
    rows = [f'{{"question": "{at}?",\n"expected_answer": {number}}}' for at, number in enumerate(numbers)]
    text = "\n".join(row.replace("\n", " ") for row in rows) if name == "a.jsonl" else f"[{','.join(rows)}]"
    (tmp_path / name).write_text(text)
    made = prepare(tmp_path / name, ALL_TO_TRAIN)
    assert [row["expected_answer"] for row in read(made / "train.jsonl")] == numbers


@pytest.mark.parametrize("change", ["no agent", "agent without a type", "carriage return", "list", "placeholder"])
def test_the_numbers_of_a_row_keep_their_digits_whatever_it_lacks(
    tmp_path: Path, prepare: Prepare, change: str
) -> None:
    numbers = '"pass_rate": 1.10, "more": {"seeds": [123456789012345678901234567890, 3.14159265358979323846, 1E5]}'
    row = gym_row(1)
    more: list[str] = []
    if change == "no agent":
        del row["agent_ref"]
    if change == "agent without a type":
        row["agent_ref"] = {"name": MATH["name"]}
    if change == "placeholder":
        marker = {"row": 0, "question_template": {"prefix": "", "suffix": ""}}
        row = {"dataset": "nano_v3_sft_profiled_dapo17k", "_hf_placeholder": marker, "agent_ref": MATH}
        more.append(f"data_prep.placeholder_sources.dapo={dapo(tmp_path / 'dapo', ['a', 'b'])}")
    line = f"{json.dumps(row).removesuffix('}')}, {numbers}}}"
    line = line.replace(", ", ",\r") if change == "carriage return" else line
    file = tmp_path / ("a.json" if change == "list" else "a.jsonl")
    file.write_text(f"[{line}]" if change == "list" else f"{line}\n", newline="")
    made = prepare(file, ALL_TO_TRAIN, *more)
    assert numbers.replace(" ", "") in (made / "train.jsonl").read_text()
    assert read(made / "train.jsonl")[0]["agent_ref"] == MATH


def test_a_parquet_column_of_decimals_holds_answers(tmp_path: Path, prepare: Prepare) -> None:
    answers = pa.array([Decimal("1.50"), Decimal("-12345678901234567890.25")], pa.decimal128(30, 2))
    pq.write_table(pa.table({"question": ["a?", "b?"], "expected_answer": answers}), tmp_path / "a.parquet")
    made = prepare(tmp_path / "a.parquet", ALL_TO_TRAIN)
    assert [row["expected_answer"] for row in read(made / "train.jsonl")] == ["1.50", "-12345678901234567890.25"]


def test_no_line_ends_inside_a_row(tmp_path: Path, prepare: Prepare) -> None:
    line = json.dumps(gym_row(1)).encode().replace(b", ", b",\r", 1)
    made = prepare(write_lines(tmp_path / "a.jsonl", [line]), ALL_TO_TRAIN)
    assert b"\r" not in (made / "train.jsonl").read_bytes()
    assert read(made / "train.jsonl") == [gym_row(1)]


def test_questions_and_finished_rows_may_be_mixed(tmp_path: Path, prepare: Prepare) -> None:
    rows = [gym_row(1), {"question": "2+2?", "expected_answer": 4}, gym_row(3, agent_ref={"name": MATH["name"]})]
    made = prepare(write_lines(tmp_path / "a.jsonl", rows), ALL_TO_TRAIN)
    assert read(made / "train.jsonl") == [gym_row(1), gym_row(2), gym_row(3)]
    stats = json.loads((made / "stats.json").read_text())
    assert stats["splits"] == {"train": {"rows": 3}}
    assert stats["counts"]["agent_ref completed"] == 1
    assert not (made / "val.jsonl").exists()


def test_the_manifest_leads_to_the_rows(tmp_path: Path, prepare: Prepare) -> None:
    made = prepare(write_lines(tmp_path / "a.jsonl", [gym_row(i) for i in range(50)]), "data_prep.holdout.rows=8")
    assert json.loads((made / "data_manifest.json").read_text()) == {
        "train": "train.jsonl",
        "val": "val.jsonl",
        "splits": {"train": {"path": "train.jsonl", "rows": 42}, "val": {"path": "val.jsonl", "rows": 8}},
    }


def dapo(path: Path, texts: list[str]) -> Path:
    rows = [
        {"prompt": [{"role": "user", "content": f"Solve.\n\n{text}\n\nRemember."}], "reward_model": {"ground_truth": a}}
        for a, text in enumerate(map(str, texts))
        for a in [f'["{a}"]']
    ]
    (path / "data").mkdir(parents=True)
    pq.write_table(pa.Table.from_pylist(rows), path / "data/train-00000.parquet", row_group_size=2)
    return path


def test_placeholders_are_filled_in_between_other_rows(tmp_path: Path, prepare: Prepare) -> None:
    marker = {"row": 3, "question_template": {"prefix": "Box it: ", "suffix": ""}}
    pointing = {"dataset": "nano_v3_sft_profiled_dapo17k", "_hf_placeholder": marker, "agent_ref": MATH, "pass_rate": 1}
    other = gym_row(1, dataset="nano_v3_sft_profiled_stem_mcqa") | {"_hf_placeholder": None}
    source = write_lines(tmp_path / "blend.jsonl", [other, pointing])
    place = dapo(tmp_path / "dapo", ["a", "b", "c", "d"])
    made = prepare(source, ALL_TO_TRAIN, f"data_prep.placeholder_sources.dapo={place}")
    filled = read(made / "train.jsonl")[1]
    assert read(made / "train.jsonl")[0] == other
    assert filled == {
        "dataset": "nano_v3_sft_profiled_dapo17k",
        "agent_ref": MATH,
        "pass_rate": 1,
        "question": "Box it: d",
        "expected_answer": "3",
        "responses_create_params": {"input": [{"role": "user", "content": "Box it: d"}]},
    }
    assert json.loads((made / "stats.json").read_text())["counts"]["placeholders resolved"] == 1
    sources = json.loads((made / "manifest.json").read_text())["sources"]
    assert [Path(entry["uri"]).name for entry in sources] == ["blend.jsonl", "train-00000.parquet"]


def test_a_placeholder_that_leads_nowhere_is_an_error_or_a_counted_rejection(tmp_path: Path, prepare: Prepare) -> None:
    marker = {"row": 4, "question_template": {"prefix": "", "suffix": ""}}
    lost = {"dataset": "nano_v3_sft_profiled_dapo17k", "_hf_placeholder": marker, "agent_ref": MATH}
    source = write_lines(tmp_path / "blend.jsonl", [gym_row(1), lost, gym_row(2), {**lost, "dataset": "mine"}])
    place = f"data_prep.placeholder_sources.dapo={dapo(tmp_path / 'dapo', ['a', 'b'])}"
    with pytest.raises(UserError, match=r"blend.jsonl:2: placeholder: no such row in its source set"):
        prepare(source, ALL_TO_TRAIN, place)
    with pytest.raises(UserError, match=r"data_prep\.placeholder_sources\.dapo="):
        prepare(source, ALL_TO_TRAIN)
    made = prepare(source, ALL_TO_TRAIN, place, "data_prep.on_bad_row=reject", "data_prep.max_lost=1")
    assert numbers(made / "train.jsonl") == [1, 2]
    assert [(row["line"], row["reason"]) for row in read(made / "rejected.jsonl")] == [
        (2, "placeholder: no such row in its source set"),
        (4, "placeholder: unknown data set"),
    ]


def test_only_rows_of_the_named_agents_are_kept_and_the_others_are_no_loss(tmp_path: Path, prepare: Prepare) -> None:
    other = {"type": "responses_api_agents", "name": "mine_simple_agent"}
    unnamed = {"question": "5+5?", "expected_answer": "10"}  # data_prep.agent verifies it
    hidden = {"_hf_placeholder": {"row": 0}, "dataset": "mine", "agent_ref": other}  # would be a bad row
    rows = [gym_row(1), *(gym_row(number, agent_ref=other) for number in (2, 3, 4)), unnamed, hidden]
    source = write_lines(tmp_path / "a.jsonl", rows)
    made = prepare(source, ALL_TO_TRAIN, f"data_prep.only_agents=[{MATH['name']}]")
    assert numbers(made / "train.jsonl") == [1, 5]
    assert json.loads((made / "stats.json").read_text())["counts"]["rejected"] == {"another agent": 4}
    with pytest.raises(UserError, match=r"data_prep\.only_agents"):
        prepare(source, "data_prep.only_agents=[]")


def test_each_row_is_kept_or_rejected(tmp_path: Path, prepare: Prepare) -> None:
    rows = [gym_row(0), b"{broken", b"", gym_row(1, agent_ref={**MATH, "type": "x"}), b"[]", b"\xff", gym_row(4)]
    made = prepare(
        write_lines(tmp_path / "a.jsonl", rows), ALL_TO_TRAIN, "data_prep.on_bad_row=reject", "data_prep.max_lost=1"
    )
    counts = json.loads((made / "stats.json").read_text())["counts"]
    assert counts["rows"] == 6
    assert counts["rejected"] == {
        "agent_ref.type is not 'responses_api_agents'": 1,
        "invalid UTF-8": 1,
        "malformed JSON": 1,
        "not a JSON object": 1,
    }
    assert numbers(made / "train.jsonl") == [0, 4]


def test_parquet_rows_become_json_or_are_refused(tmp_path: Path, prepare: Prepare) -> None:
    rows = [gym_row(1, rate=0.5, day=None), gym_row(2, rate=float("nan")), gym_row(3, day=date(2020, 1, 2))]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet")
    made = prepare(tmp_path / "a.parquet", ALL_TO_TRAIN, "data_prep.on_bad_row=reject", "data_prep.max_lost=1")
    assert numbers(made / "train.jsonl") == [1]
    assert [(row["line"], row["reason"]) for row in read(made / "rejected.jsonl")] == [
        (2, "a value that JSON has no form for"),
        (3, "a value that JSON has no form for"),
    ]


def test_equal_questions_stay_on_one_side(tmp_path: Path, prepare: Prepare) -> None:
    rows = [gym_row(i % 40) for i in range(400)]
    made = prepare(write_lines(tmp_path / "a.jsonl", rows), "data_prep.split={train: 0.5, valid: 0.3, test: 0.2}")
    sides = [set(numbers(made / f"{name}.jsonl")) for name in ("train", "val", "test")]
    assert all(sides)
    assert sum(map(len, sides)) == 40
    assert sum(len(read(made / f"{name}.jsonl")) for name in ("train", "val", "test")) == 400


def test_a_key_field_that_is_missing_names_the_row(tmp_path: Path, prepare: Prepare) -> None:
    source = write_lines(tmp_path / "a.jsonl", [gym_row(1, id="x"), gym_row(2)])
    with pytest.raises(UserError, match=r"a.jsonl:2: no field 'id' \(data_prep.key_field\)"):
        prepare(source, "data_prep.key_field=id")


def test_nothing_left_for_training_is_an_error(tmp_path: Path, prepare: Prepare) -> None:
    source = write_lines(tmp_path / "a.jsonl", [b"{}"])
    with pytest.raises(UserError, match="no question is left for training"):
        prepare(source, "data_prep.on_bad_row=reject", "data_prep.max_lost=1")


@pytest.mark.parametrize("workers", [1, 3])
def test_the_last_rows_are_held_out_whatever_the_shards_and_workers(
    tmp_path: Path, prepare: Prepare, workers: int
) -> None:
    """Five shards; the cut goes through the last but one, and a rejected row is neither counted nor held out."""
    rows: list[Any] = [gym_row(i, padding="x" * 1000) for i in range(4000)]
    rows[3990] = b"{broken"
    source = write_lines(tmp_path / "a.jsonl", rows)
    options = [
        "data_prep.shard_mb=1",
        "data_prep.on_bad_row=reject",
        "data_prep.max_lost=1",
        f"data_prep.workers={workers}",
    ]
    made = prepare(source, "data_prep.holdout.rows=1000", *options)
    kept = [i for i in range(4000) if i != 3990]
    assert (numbers(made / "train.jsonl"), numbers(made / "val.jsonl")) == (kept[:-1000], kept[-1000:])
    assert read(made / "rejected.jsonl")[0]["line"] == 3991
    assert (made / "train.jsonl").read_bytes() == b"".join(source.read_bytes().splitlines(keepends=True)[:2999])
    assert not (made / "test.jsonl").exists()


def test_a_share_of_the_rows_can_be_held_out(tmp_path: Path, prepare: Prepare) -> None:
    source = write_lines(tmp_path / "a.jsonl", [gym_row(i) for i in range(30)])
    made = prepare(source, "data_prep.holdout.fraction=0.1")
    assert numbers(made / "val.jsonl") == [27, 28, 29]


@pytest.mark.parametrize(
    ("total", "rows", "fraction", "held_out"),
    [(2, 1, None, 1), (101, 100, None, 100), (1000, None, 0.02, 20), (3, None, 0.01, 1), (3, None, 0.99, 2)],
)
def test_both_sides_get_a_row(total: int, rows: int | None, fraction: float | None, held_out: int) -> None:
    assert rows_held_out(total, Holdout(rows=rows, fraction=fraction)) == held_out


@pytest.mark.parametrize(
    ("total", "rows", "fraction"), [(99, 99, None), (500, 1000, None), (1, 1, None), (1, None, 0.5)]
)
def test_too_few_rows_to_hold_out_some_is_an_error(total: int, rows: int | None, fraction: float | None) -> None:
    with pytest.raises(UserError, match=r"none of the|too few rows") as caught:
        rows_held_out(total, Holdout(rows=rows, fraction=fraction))
    assert total == 1 or "or a share: data_prep.holdout.fraction" in caught.value.remedy


def test_a_count_and_a_share_contradict_each_other() -> None:
    with pytest.raises(ValidationError, match="set rows or fraction"):
        Holdout(rows=1, fraction=0.5)


def test_a_blend_gives_the_rows_of_all_its_data_sets(tmp_path: Path, prepare: Prepare) -> None:
    for name, number in (("a", 1), ("b", 2)):
        write_lines(tmp_path / f"{name}.jsonl", [gym_row(number)])
    blend = tmp_path / "blend.json"
    entries = [{"name": name, "path": f"{name}.jsonl"} for name in "ab"]
    blend.write_text(json.dumps({"datasets": entries}))
    assert numbers(prepare(blend, ALL_TO_TRAIN) / "train.jsonl") == [1, 2]
    blend.write_text(json.dumps({"train": entries[:1], "valid": entries[1:]}))
    with pytest.raises(UserError, match="list 'datasets'"):
        prepare(blend)


@pytest.mark.parametrize(("ready", "told"), [(False, True), (True, False)])
def test_fields_that_are_not_read_are_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], ready: bool, told: bool
) -> None:
    """A row in NeMo-Gym's form keeps them."""
    plain = {"Question": "2+2?", "expected_answer": "4", "system": "Be brief.", "level": 3}
    source = write_lines(tmp_path / "a.jsonl", [gym_row(1, level=3) if ready else plain])
    options = [f"data_prep.source={source}", f"run.home={tmp_path / 'home'}", "data_prep.workers=1", ALL_TO_TRAIN]
    assert main(["-c", "local", *options]) == 0
    assert ("fields that are not read: system, level" in capsys.readouterr().err) == told
