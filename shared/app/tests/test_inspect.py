"""`nemotron data inspect` as people and programs use it: what it shows, warns of, and refuses."""

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from packed_support import add_document, write_packed
from rich.console import Console

from nemotron_app.inspect.measure import Options, inspect_data
from nemotron_app.inspect.show import print_inspection
from nemotron_app.main import dispatch
from nemotron_app.main import main as nemotron
from nemotron_data.formats.bin_idx import IndexedDatasetWriter, write_blend
from nemotron_data.tokenizers.folder import TokenizerFolder
from nemotron_data.tokenizers.tiny import save_tokenizer
from nemotron_shared.artifacts import Store
from nemotron_shared.system.errors import UserError

HOSTILE = "<script>alert(1)</script> {{ 7 * 7 }} [red]x[/red] \x1b[31m"
OVERLAP = {"split": "valid", "how": "in the training data", "found": 1, "compared": 2}
VOID = {"meta", "br", "link", "img", "hr", "input"}


def tokenizer(folder: Path) -> TokenizerFolder:
    save_tokenizer(folder / "tokenizer")
    return TokenizerFolder(folder / "tokenizer")


def chat(folder: TokenizerFolder, asked: str, answer: str, mask: int | None = None) -> tuple[list[int], list[int]]:
    def ids(text: str) -> list[int]:
        return folder.tokenizer.encode(text, add_special_tokens=False).ids

    head, tail = ids(f"<|im_start|>user\n{asked}<|im_end|>\n<|im_start|>assistant\n"), ids(f"{answer}<|im_end|>")
    flags = [0] * len(head) + [1] * len(tail)
    return [*head, *tail], flags if mask is None else [mask] * len(flags)


@pytest.fixture
def chats(tmp_path: Path) -> Path:
    folder = tmp_path / "chats"
    model = tokenizer(folder)
    questions = [chat(model, "2+2?", "4"), chat(model, HOSTILE, "no")] + [chat(model, f"{n}+1?", "?") for n in range(8)]
    write_packed(folder / "train.parquet", questions, [[0, 1], [2, 3, 4, 5], [6, 7, 8, 9]])
    write_packed(folder / "valid.parquet", [chat(model, "7-5?", "2")], [[0]])
    write_packed(folder / "test.parquet", [chat(model, "7-6?", "1")], [[0]])
    refused = [
        {"file": "c.jsonl", "line": n, "reason": "unknown role", "detail": HOSTILE, "snippet": "{"} for n in (3, 8)
    ]
    (folder / "rejected.jsonl").write_text("".join(json.dumps(row) + "\n" for row in refused))
    (folder / "stats.json").write_text(json.dumps({"pack_size": 96}))
    return folder


@pytest.fixture
def documents(tmp_path: Path) -> Path:
    folder = tmp_path / "documents"
    model = tokenizer(folder)
    texts = {"web": ["one cat", "two cats", "one cat", "What is 2 + 2? 4."], "code": ["x = 1"]}
    names = {name: f"train/{name}/shard_000000" for name in texts} | {"held": "valid/web/shard_000000"}
    for name, found in (texts | {"held": ["one cat", "a dog"]}).items():
        with IndexedDatasetWriter(folder / names[name], 512) as writer:
            for text in found:
                add_document(writer, np.array(model.tokenizer.encode(text, add_special_tokens=False).ids))
    train = [(0.75, names["web"]), (0.25, names["code"])]
    write_blend(folder / "blend.json", {"train": train, "valid": [(1.0, names["held"])]})
    return folder


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    folder = tmp_path / "rows"
    folder.mkdir()
    for name, asked in {"train": ["What is 2 + 2?", "3+3?"], "val": ["what is  2 + 2?", "9-1?"]}.items():
        made = [
            {"responses_create_params": {"input": [{"role": "user", "content": text}]}, "expected_answer": "0",
             "agent_ref": {"type": "responses_api_agents", "name": "math"}}
            for text in asked
        ]  # fmt: skip
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in made))
    return folder


def main(argv: list[str]) -> int:
    return dispatch(["data", "inspect", *argv])


def run(capsys, *argv: str | Path) -> str:
    assert main([str(word) for word in argv]) == 0
    return capsys.readouterr().out


def figures(capsys, *argv: str | Path) -> dict:
    return json.loads(run(capsys, *argv, "--json"))


def test_packed_chats_in_a_pipe_mark_what_is_trained_on_with_brackets(chats, capsys):
    out = run(capsys, chats, "--rows", "1")
    assert "train, row 0 · 2 sequences" in out and "⟦4<|im_end|>⟧" in out and "⟦no<|im_end|>⟧" in out
    assert "2+2?<|im_end|>↵" in out and out.count("⟦") == 3  # the third is in the explanation
    assert "\x1b" not in out and "[red]x[/red] ␛[31m" in out
    assert "2 × unknown role" in out and "c.jsonl:3" in out


def test_no_color_means_brackets_and_colour_means_none(chats, monkeypatch):
    found = inspect_data(str(chats), Store.open(None), Options(rows=1))

    def printed() -> str:
        console = Console(force_terminal=True, color_system="truecolor", width=100, record=True)
        with console.capture() as capture:
            print_inspection(found, 100, console)
        return capture.get()

    monkeypatch.delenv("NO_COLOR", raising=False)
    coloured = printed()
    monkeypatch.setenv("NO_COLOR", "1")
    plain = printed()
    assert "⟦" not in coloured and "⟦4<|im_end|>⟧" in re.sub(r"\x1b\[[0-9;]*m", "", plain)
    # the answer has the ink of trained tokens, the question has not
    assert re.search(r"\x1b\[1;38;2;127;224;168;[0-9;]*m4", coloured)
    assert re.search(r"\x1b\[38;2;[0-9;]*mu|\x1b\[38;5;251;[0-9;]*mu", coloured)
    assert "\x1b[31m" not in coloured


def test_figures_of_packed_chats(chats, capsys):
    found = figures(capsys, chats)
    train = found["splits"]["train"]
    assert (train["examples"], train["sequences_seen"], found["pack_size"], found["vocab_size"]) == (3, 10, 96, 512)
    assert train["tokens"] == train["tokens_seen"] and 20 <= train["trained_tokens_seen"] < train["tokens"]
    assert found["rejected"] == {"unknown role": 2} and found["duplicates"]["extra_copies"]["train"] == 0
    assert train["fill"] == pytest.approx(train["tokens"] / (3 * 96))


def test_documents_show_blend_duplicates_and_overlap(documents, capsys):
    found = figures(capsys, documents)
    assert [(share["data_set"], share["asked"], share["documents"]) for share in found["blend"]] == [
        ("web", 0.75, 4), ("code", 0.25, 1),
    ]  # fmt: skip
    assert sum(share["on_disk"] for share in found["blend"]) == pytest.approx(1)
    assert found["duplicates"]["extra_copies"] == {"train": 1, "valid": 0}
    assert found["overlap"] == [OVERLAP | {"what": "documents"}]
    assert found["warnings"] == ["1 of 2 documents of valid occurs in the training data"], "and no test is needed"
    out = run(capsys, documents, "--split", "valid")
    assert "a dog" in out and "75.0%" in out and "⟦" not in out


def test_rows_show_question_answer_and_agent_and_leaks(rows, capsys):
    out = run(capsys, rows)
    assert re.search(r"user +What is 2 \+ 2\?", out) and re.search(r"expected answer +0", out) and "math" in out
    assert figures(capsys, rows)["overlap"] == [OVERLAP | {"what": "questions"}]


def test_questions_of_a_held_out_set_are_looked_for_in_training_text(documents, rows, capsys):
    found = figures(capsys, documents, "--against", rows)["overlap"]
    hits = {entry["split"]: (entry["found"], entry["compared"]) for entry in found if "inside" in entry["how"]}
    assert hits == {"rows train": (1, 2), "rows valid": (1, 2)}
    with pytest.raises(UserError, match="no row has a 'key'"):
        main([str(rows), "--against", str(documents)])


def test_every_reason_not_to_train_is_a_warning(tmp_path):
    folder = tmp_path / "bad"
    model = tokenizer(folder)
    ones, zeros = chat(model, "a?", "b", mask=1), chat(model, "c?", "d", mask=0)
    strange, long = ([5, 6, 9_999, 2], [0, 0, 1, 1]), chat(model, "x" * 300, "y")
    write_packed(folder / "train.parquet", [ones, zeros, strange, long], [[0], [1], [2], [3]])
    write_packed(folder / "valid.parquet", [(zeros[0], [0] * (len(zeros[0]) - 2) + [1, 1])], [[0]])
    (folder / "stats.json").write_text(json.dumps({"pack_size": 64}))
    warnings = "\n".join(inspect_data(str(folder), Store.open(None)).warnings)
    for part in (
        "train: 1 of 4 rows: every token is trained on; the loss mask is all ones",
        "train: 1 of 4 rows: no token is trained on; the loss mask is all zeros",
        "train: 1 of 4 rows: token ids outside the vocabulary",
        "train: 1 of 4 rows are longer than the pack size of 64",
        "1 of 1 sequences of valid occurs in the training data",
    ):
        assert part in warnings
    (folder / "valid.parquet").unlink()
    assert "the split 'valid' is empty" in inspect_data(str(folder), Store.open(None)).warnings
    for file in (folder / "tokenizer").iterdir():
        file.unlink()
    assert "comes without a tokenizer" in inspect_data(str(folder), Store.open(None)).warnings[0]


def test_a_mask_that_was_never_shifted_is_a_warning(tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns = {"input_ids": [[1, 2, 3, 4]], "loss_mask": [[0, 0, 1, 1]], "seq_start_id": [[0]]}
    pq.write_table(pa.table(columns), tmp_path / "train.parquet")
    found = inspect_data(str(tmp_path / "train.parquet"), Store.open(None))
    assert any("so it was not shifted" in warning for warning in found.warnings)


def test_a_clean_set_has_no_warnings(chats):
    assert inspect_data(str(chats), Store.open(None)).warnings == []


def test_rows_are_chosen_by_number_or_seed(chats, capsys):
    def shown(*argv: str) -> list[str]:
        return re.findall(r"^train, row (\d+) ·", run(capsys, chats, *argv), re.MULTILINE)

    assert shown("--row", "2") == ["2"] and shown("--rows", "2") == ["0", "1"] and shown("--rows", "0") == []
    assert sorted(shown("--shuffle", "1")) == ["0", "1", "2"] and shown("--shuffle", "1") == shown("--shuffle", "1")
    assert len({tuple(shown("--shuffle", str(seed))) for seed in range(8)}) > 1
    for argv, message in ((["--row", "3"], "no row 3"), (["--split", "trian"], "did you mean 'train'")):
        with pytest.raises(UserError, match=message):
            main([str(chats), *argv])


class Page(HTMLParser):
    """Tags in balance, and the text of what is marked as trained on."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[tuple[str, dict]] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        self.seen.append((tag, dict(attributes)))
        self.open += [] if tag in VOID else [tag]

    def handle_startendtag(self, tag, attributes):
        self.seen.append((tag, dict(attributes)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_the_page_stands_alone_and_escapes_the_data(chats, documents, rows, tmp_path, capsys):
    for folder in (chats, documents, rows):
        page = tmp_path / "look.html"
        assert f"page: {page}" in run(capsys, folder, "--html", page)
        text = page.read_text(encoding="utf-8")
        seen = Page(text).seen
        assert not {"link", "img", "iframe"} & {tag for tag, _ in seen}
        assert not [value for _, found in seen for name, value in found.items() if name in {"src", "onclick"}]
        assert all(found["href"].startswith("#") for tag, found in seen if tag == "a")
        assert "url(" not in text and "@import" not in text and text.count("<script") == 1 and "\x1b" not in text


def test_the_page_marks_trained_tokens_and_draws_the_pack(chats, tmp_path, capsys):
    page = tmp_path / "look.html"
    run(capsys, chats, "--html", page, "--rows", "1")
    text = page.read_text(encoding="utf-8")
    plain = [re.sub("<[^>]+>", "", run) for run in re.findall(r'<span class="on">(.*?)</span>', text)]
    assert plain == ["trained on", "4&lt;|im_end|&gt;", "no&lt;|im_end|&gt;"]
    looks = re.findall(r'<rect class="(\w+)"', text)
    assert looks == ["even", "trained", "odd", "trained"]
    assert "&lt;script&gt;alert(1)" in re.sub("<[^>]+>", "", text)


def test_the_command_line_leads_here_and_prep_still_works(chats, capsys, monkeypatch):
    assert nemotron(["data", "inspect", str(chats), "--json"]) == 0
    first = json.loads(capsys.readouterr().out)
    assert nemotron(["nano3", "data", "inspect", str(chats), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == first
    ran = []
    monkeypatch.setattr("nemotron_app.launch.run_step", lambda stage, verb, request: ran.append((stage, verb)))
    assert nemotron(["super3", "data", "prep", "sft", "-c", "tiny"]) == 0 and ran == [("sft", "data_prep")]
    assert nemotron(["data", "inspect", str(chats / "nothing")]) == 2
