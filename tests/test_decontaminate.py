"""`data_prep.decontaminate` in every training stage: rows of an evaluation are left out, stopped at or counted."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from support import last_values

from stages.eval.data_prep import main as prepare_eval
from stages.pretrain.data_prep import main as prepare_pretrain
from stages.rl.data_prep import main as prepare_rl
from stages.sft.data_prep import main as prepare_sft

LONG = "A baker sells forty loaves of rye bread every morning and half as many in the afternoon. How many in a week?"
ASKED = [{"question": "What is 12 times 12?", "expected_answer": "144"}, {"question": LONG, "expected_answer": "420"}]
# of one stage each: a row as that stage reads it, about a question
Main = Callable[[list[str]], int]
ROWS: dict[str, tuple[Main, Callable[[str], dict]]] = {
    "pretrain": (prepare_pretrain, lambda text: {"text": f"A quiz. {text} Nobody knew."}),
    "sft": (
        prepare_sft,
        lambda text: {"messages": [{"role": "user", "content": text}, {"role": "assistant", "content": "1"}]},
    ),
    "rl": (prepare_rl, lambda text: {"question": text, "expected_answer": "1"}),
}
ACTION = "data_prep.decontaminate.action"
EVERYTHING = "data_prep.split={train: 1, valid: 0, test: 0}"


def write(path: Path, rows: list[dict]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture
def prepare(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[Path, str]]:
    """Run a step; give the artifact's folder, or None where it was refused, and what was said."""

    def run(main: Main, *overrides: str) -> tuple[Path | None, str]:
        words = ["-c", "tiny", f"run.home={tmp_path / 'home'}", "data_prep.workers=1", *overrides, "--json"]
        code = main(last_values(words))
        said = capsys.readouterr()
        return (None if code else Path(json.loads(said.out.splitlines()[-1])["path"])), said.out + said.err

    return run


@pytest.fixture
def source(tmp_path: Path) -> Callable[[str], str]:
    """A file of a stage's rows: a copy, a copy with other numbers, and two that are nobody's."""

    def written(stage: str) -> str:
        texts = ["What is 12 times 12?", LONG.replace("forty", "sixty"), "What is 11 times 12?", "Who is Tova?"]
        return f"data_prep.source={write(tmp_path / f'{stage}.jsonl', [ROWS[stage][1](text) for text in texts])}"

    return written


@pytest.mark.parametrize("stage", ROWS)
def test_rows_of_an_evaluation_are_left_out_and_counted(stage: str, prepare, source, tmp_path: Path) -> None:
    prepare(prepare_eval, f"data_prep.source={write(tmp_path / 'asked.jsonl', ASKED)}")
    main = ROWS[stage][0]
    folder, said = prepare(main, source(stage), EVERYTHING, "data_prep.decontaminate.against=eval-data")
    assert "compared with 2 evaluation rows: 2 rows overlap (1 exact, 1 run, 0 near), which were left out" in said
    counts = json.loads((folder / "stats.json").read_text())["counts"]
    assert (counts["rows"], counts["rejected"]) == (4, {"overlaps with evaluation rows": 2})
    left_out = [json.loads(line) for line in (folder / "rejected.jsonl").read_text().splitlines()]
    assert [entry["line"] for entry in left_out] == [1, 2]
    assert "row 0 of 'questions' (exact)" in left_out[0]["detail"]
    manifest = json.loads((folder / "manifest.json").read_text())
    assert any(entry["uri"] == "super3-eval-data:v1" for entry in manifest["sources"])


def test_stop_names_the_row_and_report_leaves_it(prepare, source, tmp_path: Path) -> None:
    against = f"data_prep.decontaminate.against={write(tmp_path / 'asked.jsonl', ASKED)}"
    folder, said = prepare(prepare_rl, source("rl"), EVERYTHING, against, "data_prep.decontaminate.action=stop")
    assert folder is None
    assert "rl.jsonl:1: overlaps with evaluation rows: row 0 of 'asked.jsonl' (exact)" in said
    assert "data_prep.decontaminate.action=drop" in said
    folder, said = prepare(prepare_rl, source("rl"), EVERYTHING, against, "data_prep.decontaminate.action=report")
    assert "2 rows overlap (1 exact, 1 run, 0 near), which are still in it" in said
    assert json.loads((folder / "stats.json").read_text())["splits"]["train"]["rows"] == 4
    folder, said = prepare(prepare_rl, source("rl"), EVERYTHING, against, "data_prep.decontaminate.ways=[exact]")
    assert "1 rows overlap (1 exact), which were left out" in said


def test_rows_of_an_environment_are_compared(prepare, source, tmp_path: Path) -> None:
    def played(question: str, **fields: int) -> dict:
        agent = {"type": "responses_api_agents", "name": "trains_agent"}
        return {"responses_create_params": {"input": question}, **fields, "agent_ref": agent}

    held_out = tmp_path / "validation.jsonl"
    against = f"data_prep.decontaminate.against={held_out}"
    trained = write(tmp_path / "trains.jsonl", [played("Book a seat.", seat=seat) for seat in range(3)])
    write(held_out, [played("What is 12 times 12?", seat=0)])
    _, said = prepare(prepare_rl, source("rl"), EVERYTHING, against)
    assert "compared with 1 evaluation rows: 1 rows overlap (1 exact, 0 run, 0 near)" in said
    write(held_out, [played("Book a seat.", seat=1)])
    _, said = prepare(prepare_rl, f"data_prep.source={trained}", EVERYTHING, against, f"{ACTION}=report")
    assert "compared with 1 evaluation rows: 3 rows overlap" in said
    write(held_out, [played("Book a seat.", seat=seat) for seat in (1, 5)])
    _, said = prepare(prepare_rl, f"data_prep.source={trained}", EVERYTHING, against, f"{ACTION}=report")
    assert "compared with 2 evaluation rows: 1 rows overlap" in said
    write(held_out, [{"question": "Book a seat.", "row": row} for row in (17, {"of": "a table"})])
    _, said = prepare(prepare_rl, f"data_prep.source={trained}", EVERYTHING, against, f"{ACTION}=report")
    assert "compared with 2 evaluation rows: 3 rows overlap" in said


def test_what_is_not_there_or_no_evaluation_is_refused(prepare, source, tmp_path: Path) -> None:
    _, said = prepare(prepare_rl, source("rl"), "data_prep.decontaminate.against=eval-data")
    assert "data_prep.decontaminate.against: no artifact 'super3-eval-data'" in said
    assert "nemotron super3 data prep eval -c tiny" in said
    bad = write(tmp_path / "bad.jsonl", [{"title": "no question"}])
    _, said = prepare(prepare_rl, source("rl"), f"data_prep.decontaminate.against={bad}")
    assert "bad.jsonl:1: a row of an evaluation needs a 'question', a 'prompt' or a 'text'" in said
    write(bad, [{"responses_create_params": {"input": []}}])
    _, said = prepare(prepare_rl, source("rl"), f"data_prep.decontaminate.against={bad}")
    assert "bad.jsonl:1: a row of an evaluation needs" in said
    _, said = prepare(prepare_rl, source("rl"), "data_prep.decontaminate.against=./nowhere.jsonl")
    assert "nowhere.jsonl" in said


def test_the_rows_of_another_evaluation_give_other_data(prepare, source, tmp_path: Path) -> None:
    file = tmp_path / "asked.jsonl"
    settings = (source("rl"), EVERYTHING, f"data_prep.decontaminate.against={file}")
    write(file, ASKED)
    first, _ = prepare(prepare_rl, *settings)
    assert prepare(prepare_rl, *settings)[0] == first
    write(file, ASKED[:1])
    assert prepare(prepare_rl, *settings)[0] != first


@pytest.mark.slow
def test_neither_shards_nor_workers_show_in_what_is_left_out(prepare, tmp_path: Path) -> None:
    write(tmp_path / "asked.jsonl", [{"question": f"How much is {n} and {n + 7}?"} for n in range(0, 4000, 7)])
    rows = [{"question": f"How much is {n} and {n + 7}?", "expected_answer": "1", "x": "x" * 500} for n in range(6000)]
    settings = [f"data_prep.source={write(tmp_path / 'rl.jsonl', rows)}", EVERYTHING]
    settings.append(f"data_prep.decontaminate.against={tmp_path / 'asked.jsonl'}")
    one, _ = prepare(prepare_rl, *settings)
    many, said = prepare(prepare_rl, *settings, "data_prep.shard_mb=1", "data_prep.workers=2")
    assert one != many
    assert "572 rows overlap (572 exact, 0 run, 0 near), which were left out" in said
    for name in ("train.jsonl", "rejected.jsonl"):
        assert (one / name).read_bytes() == (many / name).read_bytes()
