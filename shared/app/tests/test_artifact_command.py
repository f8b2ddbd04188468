"""`nemotron artifacts` as people and programs use it: what it prints and the exit codes."""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from nemotron_app.main import dispatch
from nemotron_shared.artifacts import Artifact, Parent, Producer, Source, Store
from nemotron_shared.system.errors import UserError


@pytest.fixture
def store(tmp_path: Path, monkeypatch) -> Store:
    monkeypatch.setenv("NEMOTRON_HOME", str(tmp_path / "home"))
    return Store.open()


def publish(store: Store, name: str, type, parents: list[Parent] | None = None) -> Artifact:
    store.home.mkdir(exist_ok=True)
    folder = Path(tempfile.mkdtemp(dir=store.home))
    (folder / "file.bin").write_bytes(b"x" * 1500)
    producer = Producer("sft", "train", "0.1.0", "0.1.0", "c", "d", "abc123", "nemotron super3 sft -c tiny", {})
    return store.publish(
        folder, name=name, type=type, fingerprint="f", producer=producer, parents=parents or [],
        sources=[] if parents else [Source("hf://org/[red]set:v:", "9" * 64)], metrics={"final_loss": 2.5},
    )  # fmt: skip


@pytest.fixture
def two(store: Store) -> tuple[Artifact, Artifact]:
    data = publish(store, "super3-sft-data", "SFTDataArtifact")
    return data, publish(store, "super3-sft-model", "ModelArtifact", [data.as_parent("data")])


def test_replay_is_in_both_helps(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    assert "replay   Make it again, and compare the bytes.\n" in capsys.readouterr().out
    assert dispatch(["--help"]) == 0
    assert "[list|show|lineage|verify|replay|" in capsys.readouterr().out


def main(argv: list[str]) -> int:
    return dispatch(["artifacts", *argv])


def run(capsys, *argv: str) -> tuple[int, str]:
    code = main(list(argv))
    return code, capsys.readouterr().out


def run_json(capsys, *argv: str):
    code, out = run(capsys, *argv, "--json")
    assert code == 0
    return json.loads(out)


def test_an_empty_store_says_so(store: Store, capsys) -> None:
    assert run(capsys) == (0, f"no artifacts in {store.root}; the stages put theirs there\n")
    assert run_json(capsys, "list") == []


def test_list_shows_every_version_with_its_other_names(store: Store, two, capsys) -> None:
    publish(store, "super3-sft-model", "ModelArtifact")
    store.set_alias("super3-sft-model", 1, "best")
    for argv in ([], ["list"]):
        code, out = run(capsys, *argv)
        rows = [line.split() for line in out.splitlines()]
        assert code == 0 and [row[:2] for row in rows[1:]] == [
            ["super3-sft-data:v1", "latest"],
            ["super3-sft-model:v1", "best"],
            ["super3-sft-model:v2", "latest"],
        ]
    assert "1.5 kB" in out
    listed = run_json(capsys, "list")
    assert [(row["reference"], row["aliases"], row["bytes"]) for row in listed][1] == (
        "super3-sft-model:v1", ["best"], 1500,
    )  # fmt: skip
    assert run_json(capsys) == listed


def test_show_tells_who_made_it_from_what(two, capsys) -> None:
    code, out = run(capsys, "show", "sft:v1")
    assert code == 0
    for part in ("nemotron super3 sft -c tiny", "data: super3-sft-data:v1", "final_loss: 2.5", "file.bin  1.5 kB"):
        assert part in out
    assert "hf://org/[red]set:v:" in run(capsys, "show", "sft-data")[1]  # free text is not markup
    shown = run_json(capsys, "show", "sft")
    assert shown["manifest"] == two[1].manifest.to_json() and shown["path"] == str(two[1].path)


def test_show_says_that_a_manifest_was_edited(two, capsys) -> None:
    file = two[1].path / "manifest.json"
    assert run_json(capsys, "show", "sft")["problem"] is None
    file.write_text(file.read_text().replace("2.5", "0.1"))
    said = f"super3-sft-model:v1 is damaged: manifest.json: content changed (in {two[1].path})"
    assert said in run(capsys, "show", "sft")[1] and said in run_json(capsys, "show", "sft")["problem"]


def test_show_shortens_a_long_list_of_files(store: Store, capsys) -> None:
    folder = store.home / "work"
    folder.mkdir(parents=True)
    for index in range(25):
        (folder / f"shard-{index:02}").write_text("x")
    producer = Producer("sft", "train", "0", "0", "c", "d", None, "", {})
    store.publish(folder, name="x", type="SFTDataArtifact", fingerprint="f", producer=producer)
    out = run(capsys, "show", "x")[1]
    assert "shard-19" in out and "shard-20" not in out and "and 5 more" in out


def test_lineage_as_tree_as_mermaid_and_as_json(two, capsys) -> None:
    assert run(capsys, "lineage", "sft")[1].splitlines()[1] == "└── data: super3-sft-data:v1  SFTDataArtifact"
    assert run(capsys, "lineage", "sft", "--mermaid")[1].startswith("flowchart LR\n")
    steps = run_json(capsys, "lineage", "sft")
    assert [(step["input"], step["made"]) for step in steps] == [
        ("hf://org/[red]set:v:", "super3-sft-data:v1"),
        ("super3-sft-data:v1", "super3-sft-model:v1"),
    ]


def test_verify_exits_with_1_on_damage(two, capsys) -> None:
    data, model = two
    assert run(capsys, "verify") == (0, "super3-sft-data:v1: ok\nsuper3-sft-model:v1: ok\n")
    (model.path / "file.bin").write_bytes(b"y" * 1500)
    assert run(capsys, "verify", "sft-data")[0] == 0
    assert run(capsys, "verify", "--fast")[0] == 0
    assert run(capsys, "verify", "sft") == (1, "super3-sft-model:v1: damaged\n  file.bin: content changed\n")
    (data.path / "manifest.json").write_text("{}")
    code, out = run(capsys, "verify", "--json")
    results = {result["reference"]: result["problems"] for result in json.loads(out)}
    assert code == 1 and results["super3-sft-model:v1"] == ["file.bin: content changed"]
    assert "is missing" in results["super3-sft-data:v1"][0]


def test_alias_and_path(two, capsys) -> None:
    assert run(capsys, "alias", "sft:v1", "best") == (0, "super3-sft-model:best is now super3-sft-model:v1\n")
    assert run(capsys, "path", "sft:best") == (0, f"{two[1].path}\n")
    assert run_json(capsys, "path", "sft:best") == {"path": str(two[1].path)}
    pair = {"alias": "super3-sft-model:good", "reference": "super3-sft-model:v1"}
    assert run_json(capsys, "alias", "sft", "good") == pair


def test_home_and_family_may_stand_before_or_after_the_command(tmp_path: Path, store: Store, capsys) -> None:
    other = Store.open(str(tmp_path / "other"))
    made = publish(other, "nano3-sft-model", "ModelArtifact")
    flags = ["--home", str(other.home), "--family", "nano3"]
    for argv in (["path", "sft", *flags], [*flags, "path", "sft"]):
        assert run(capsys, *argv) == (0, f"{made.path}\n")


def test_what_cannot_be_found_is_an_error_for_the_user(two, capsys) -> None:
    for argv in (["show", "sft:v9"], ["path", "nothing"], ["verify", "rl"], ["alias", "sft:v1", "latest"]):
        with pytest.raises(UserError):
            main(argv)
    with pytest.raises(UserError, match="No such command 'unknown'"):
        main(["unknown"])


def test_reading_the_command_line_loads_nothing_heavy() -> None:
    program = "import sys, nemotron_app.artifacts; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()
    assert not {"torch", "numpy", "rich", "pydantic", "hydra"} & set(loaded)


def test_one_that_cannot_be_read_does_not_hide_the_others(two, capsys) -> None:
    data, model = two
    manifest = data.path / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"schema_version": 2', '"schema_version": 1'))
    (model.path / "manifest.json").write_text("{")
    code, out = run(capsys)
    assert code == 0 and "older layout" in out and "damaged: " in out
    problems = [row["problem"] for row in run_json(capsys, "list")]
    assert problems[0] == "older layout" and problems[1].startswith("damaged: ")
    code, out = run(capsys, "verify", "sft")
    assert code == 1 and "not valid JSON" in out
    (model.path / "manifest.json").unlink()
    said = f"damaged: {model.path / 'manifest.json'} is missing"
    assert run_json(capsys, "list")[1]["problem"] == said and said in run(capsys)[1]
    code, out = run(capsys, "verify", "sft")
    assert code == 1 and "manifest.json is missing" in out


def test_a_name_that_is_a_link_to_itself_costs_the_list_one_line(store: Store, two, capsys) -> None:
    (store.root / "loop").symlink_to("loop")
    said = f"damaged: {store.root / 'loop'}: cannot be read: Too many levels of symbolic links; a link that leads to it"
    code, out = run(capsys)
    rows = [line.split() for line in out.splitlines()[1:]]
    assert code == 0 and [row[0] for row in rows] == ["loop", "super3-sft-data:v1", "super3-sft-model:v1"]
    assert said in out
    listed = run_json(capsys)
    assert listed[0]["reference"] == "loop" and listed[0]["problem"].startswith(said)
    assert [row["problem"] for row in listed[1:]] == [None, None]
    code, out = run(capsys, "verify")
    assert code == 1 and "loop: damaged\n  " in out and "super3-sft-model:v1: ok" in out
    assert {one.reference for one in store.readable("ModelArtifact")} == {"super3-sft-model:v1"}
    with pytest.raises(UserError, match="no artifact 'nothing'"):
        store.resolve("nothing:v1")


def test_nothing_is_removed_where_nobody_can_tell_what_is_needed(store: Store, two) -> None:
    (store.root / "loop").symlink_to("loop")
    for words in (["gc", "--yes"], ["rm", "sft:v1"]):
        with pytest.raises(UserError, match="loop: cannot be read"):
            main(words)
    assert store.versions("super3-sft-model") == [1]


def test_damaged_aliases_cost_the_list_one_line(store: Store, two, capsys) -> None:
    (store.root / "super3-sft-data" / "aliases.json").write_text("{")
    code, out = run(capsys)
    rows = [line.split() for line in out.splitlines()[1:]]
    assert code == 0 and [row[0] for row in rows] == ["super3-sft-data", "super3-sft-data:v1", "super3-sft-model:v1"]
    assert "delete it: its aliases are lost then" in out and rows[2][1] == "latest"
    listed = run_json(capsys)
    assert listed[0]["problem"].startswith("damaged: ") and "aliases.json: not valid JSON" in listed[0]["problem"]
    assert [row["problem"] for row in listed[1:]] == [None, None]


def test_control_characters_are_spelled_out(store: Store, capsys) -> None:
    hostile = "\x1b]0;owned\x07\x9b2J\nforged: line"
    folder = store.home / "work"
    folder.mkdir(parents=True)
    (folder / "a\x1b[31m").write_text("x")
    producer = Producer("sft", "train", "0", "0", "c", "d", None, hostile, {})
    store.publish(
        folder, name="x", type="SFTDataArtifact", fingerprint="f", producer=producer, sources=[Source(hostile, "0")],
        metadata={"note": hostile}, metrics={hostile: 1},
    )  # fmt: skip
    for argv in (["show", "x"], ["lineage", "x"], ["list"], ["show", "x", "--json"], ["lineage", "x", "--json"]):
        out = run(capsys, *argv)[1]
        assert not {"\x1b", "\x07", "\x9b"} & set(out)
        assert "\nforged" not in out
    assert json.loads(run(capsys, "show", "x", "--json")[1])["manifest"]["producer"]["command"] == hostile


def test_rm_removes_one_version_and_its_aliases(two, capsys) -> None:
    run(capsys, "alias", "sft", "best")
    with pytest.raises(UserError, match="is needed by super3-sft-model:v1"):
        main(["rm", "sft-data"])
    assert run(capsys, "rm", "sft:v1") == (0, "removed super3-sft-model:v1, and its aliases: best\n")
    assert run_json(capsys, "rm", "sft-data:v1") == {"removed": "super3-sft-data:v1", "aliases": []}
    assert run_json(capsys, "list") == []


def test_gc_lists_first_and_removes_with_yes(store: Store, two, capsys) -> None:
    publish(store, "super3-sft-model", "ModelArtifact")
    code, out = run(capsys, "gc")
    assert code == 0 and "would remove super3-sft-model:v1" in out and "sft-data" not in out and "gc --yes" in out
    assert len(run_json(capsys, "list")) == 3
    assert run(capsys, "gc", "--keep", "2") == (0, "nothing to remove\n")
    assert run_json(capsys, "gc", "--yes")["versions"] == ["super3-sft-model:v1"]
    assert [row["reference"] for row in run_json(capsys)] == ["super3-sft-data:v1", "super3-sft-model:v2"]
    with pytest.raises(UserError, match="not in the range"):
        main(["gc", "--keep", "0"])
