"""Cards: written by a run, stale when their code changes, and the page that is made of them."""

import json
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from nemotron_app.main import dispatch
from nemotron_prove.cards import card as cards
from nemotron_prove.cards import command as command_module
from nemotron_prove.cards.card import ROOT, Card, code_digest, is_stale, place, read_card, write_card
from nemotron_prove.cards.command import measured
from nemotron_prove.cards.items import ITEMS, Item
from nemotron_prove.cards.measured import FAILED, NOT_BUILT, STATUSES, VERIFIED, CannotRun, Measured
from nemotron_prove.cards.page import PAGE, page_of
from nemotron_shared.errors import UserError
from nemotron_shared.families import families
from nemotron_shared.runtime.provenance import ask_git, git_commit


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "docs").mkdir()
    return tmp_path


def item(outcome: Measured | Exception, monkeypatch: pytest.MonkeyPatch) -> Item:
    """One whose measurement comes out as given."""

    def measure(self: Item, family: str, folder: Path) -> Measured:
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    monkeypatch.setattr(Item, "measure", measure)
    return ITEMS["packing"]


@pytest.mark.parametrize(
    ("outcome", "status"),
    [
        (Measured({"a": 1e-6, "b": 0.0}, 1e-5), VERIFIED),
        (Measured({"a": 1e-6, "b": 1e-4}, 1e-5), FAILED),
        (Measured({"a": float("nan")}, 1e-5), FAILED),
        (Measured({}, 1.0), FAILED),
        (UserError("it went wrong"), FAILED),
        (RuntimeError("shapes do not fit"), FAILED),
        (CannotRun(NOT_BUILT, "nobody has"), NOT_BUILT),
    ],
)
def test_a_card_says_what_was_measured(root: Path, monkeypatch, outcome: Measured | Exception, status: str) -> None:
    card = measured("nano3", "packing", item(outcome, monkeypatch))
    assert card.status == status and card.command == "nemotron prove cards --family nano3 --item packing"
    assert card.machine and card.date and len(card.code) == 64
    write_card(root, "nano3", "packing", card)
    if outcome != Measured({"a": float("nan")}, 1e-5) and "nan" not in str(card.figures):
        assert read_card(root, "nano3", "packing") == replace(card, content=cards.content_digest(card))


def test_a_card_is_stale_when_code_that_it_reaches_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    packing, resume = ITEMS["packing"], ITEMS["resume"]
    card = Card(VERIFIED, "", None, "", "", code_digest("nano3", packing), content="of itself")
    assert not is_stale(card, "nano3", packing)
    assert is_stale(replace(card, content=None), "nano3", packing)
    reached = cards._closure(packing.entries)
    assert {"nemotron_engines.modeling.packed", "nemotron_engines.kernels.mamba_ops"} <= reached.keys()
    assert not any(name.startswith("stages.") for name in reached)
    assert "stages.sft.engines.transformers.train" in cards._closure(resume.entries)
    assert is_stale(card, "super3", packing)  # another shape
    changed = {**reached, "nemotron_engines.modeling.packed": "0" * 64}
    monkeypatch.setattr(cards, "_closure", lambda entries: changed)
    assert is_stale(card, "nano3", packing)


def test_a_card_is_stale_when_a_file_that_its_measurement_reads_changes(tmp_path: Path, monkeypatch) -> None:
    assert "nemotron_cluster.slurm.script" in cards._closure(ITEMS["launch_script"].entries)
    assert "nemotron_cluster:slurm/body.sh" in cards.files_read(ITEMS["launch_script"].reads)
    read = cards.files_read(ITEMS["data_recipe"].reads)
    wanted = ("stages.sft:config/super3.yaml", "stages.rl:config/blends/super3.json")
    assert {*wanted, "nemotron_data:chat/templates/nano3.jinja"} <= read.keys()
    every = [pattern for one in ITEMS.values() for pattern in one.reads]
    assert all(cards.files_read((pattern,)) for pattern in every), "a pattern that means no file"

    monkeypatch.setattr(cards, "_roots", lambda: {"stages.sft": tmp_path})
    asks = replace(ITEMS["packing"], reads=("stages.sft:*.yaml", "stages.sft:*.sh"))
    monkeypatch.setattr(cards, "_closure", lambda entries: {})
    (tmp_path / "run.sh").write_text("one")
    digests = []
    for text in ("a: 1", "a: 1  # comment", "a: 2"):
        (tmp_path / "tiny.yaml").write_text(text)
        digests.append(code_digest("nano3", asks))
    (tmp_path / "run.sh").write_text("two")
    assert digests[0] == digests[1] != digests[2] != code_digest("nano3", asks)


def test_a_card_that_was_edited_or_is_unreadable_is_told_and_measured_again(root: Path, monkeypatch, capsys) -> None:
    asked = item(Measured({"a": 1e-6}, 1e-5), monkeypatch)
    words = ["prove", "cards", "--root", str(root), "--family", "nano3", "--item", "packing"]
    write_card(root, "nano3", "packing", measured("nano3", "packing", asked))
    file = place(root, "nano3", "packing")
    whole = file.read_text()
    for text, state in (
        (whole, VERIFIED),
        (whole.replace("1.0e-06", "5.0"), "edited"),
        ("other: 1\n", "unreadable"),
        ("figures: [", "unreadable"),
    ):
        file.write_text(text)
        assert dispatch([*words, "--list", "--json"]) == 0
        assert [row["status"] for row in json.loads(capsys.readouterr().out)] == [state]
        assert f"| {state} |" in page_of(root)
    assert dispatch(words) == 0
    assert file.read_text() == whole


def test_the_list_and_the_page_follow_the_cards(root: Path, capsys) -> None:
    card = Card(VERIFIED, "", "4b3d", "2026-01-31", "AMD EPYC", code_digest("nano3", ITEMS["masks"]), {"a": 0.0}, 0.0)
    write_card(root, "nano3", "masks", card)
    write_card(root, "nano3", "packing", replace(card, code="0" * 64, commit=f"{'4' * 40}-dirty"))
    words = ["prove", "cards", "--root", str(root), "--family", "nano3", "--list", "--json"]
    assert dispatch(words) == 0
    states = {row["item"]: row["status"] for row in json.loads(capsys.readouterr().out)}
    assert states.keys() == ITEMS.keys()
    assert (states["masks"], states["packing"], states["import"]) == (VERIFIED, "stale", "not measured")
    page = page_of(root)
    assert "| `masks` | a: 0 | 0 | 2026-01-31 | 4b3d |" in page and "## super3" not in page
    assert f"| {'4' * 12}-dirty |" in page


def test_an_unknown_name_gets_the_nearest(root: Path) -> None:
    with pytest.raises(UserError, match="there is no item 'pakcing'") as caught:
        dispatch(["prove", "cards", "--root", str(root), "--item", "pakcing"])
    assert caught.value.remedy == "did you mean 'packing'?"


def test_the_page_of_this_repository_is_made_of_its_cards() -> None:
    assert (ROOT / PAGE).read_text(encoding="utf-8") == page_of(ROOT), "run: nemotron prove cards --item NAME"
    found = sorted((ROOT / cards.FOLDER).glob("*/*.yaml"))
    assert found and all(path.stem in ITEMS and path.parent.name in families() for path in found)
    assert all(card.status in STATUSES for path in found if (card := read_card(ROOT, path.parent.name, path.stem)))


def test_the_cheapest_items_measure_something(tmp_path: Path) -> None:
    from nemotron_prove.cards.measures import packs

    (tmp_path / "a").mkdir()
    assert ITEMS["packing"].measure("nano3", tmp_path / "a").status == VERIFIED
    # a model whose documents leak is found out
    (tmp_path / "b").mkdir()
    original, packs.packed_inputs = packs.packed_inputs, lambda starts, length: {}
    try:
        assert ITEMS["packing"].measure("nano3", tmp_path / "b").status == FAILED
    finally:
        packs.packed_inputs = original
    with pytest.raises(CannotRun):
        Item("nobody has built it", None).measure("nano3", tmp_path)


def test_a_run_s_own_cards_do_not_make_the_commit_dirty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command_module, "ROOT", tmp_path)
    git = ("git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b.invalid")
    for name in ("docs/cards/nano3/packing.yaml", "docs/cards.md", "code.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("1")
    for words in (("init", "-q"), ("add", "."), ("commit", "-qm", "one")):
        subprocess.run([*git, *words], check=True)
    for changed, dirty in (("docs/cards/nano3/packing.yaml", False), ("docs/cards.md", False), ("code.py", True)):
        (tmp_path / changed).write_text("2")
        git_commit.cache_clear()
        ask_git.cache_clear()
        assert (command_module.commit_of_code() or "").endswith("-dirty") == dirty
    git_commit.cache_clear()
    ask_git.cache_clear()
