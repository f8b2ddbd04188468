"""History of artifacts: a diamond, parents that are gone or changed, and text that Mermaid can read."""

import re
import shutil
import tempfile
from pathlib import Path

import pytest

from nemotron_shared.artifacts import Artifact, Producer, Source, Store
from nemotron_shared.artifacts.lineage import ancestors, edges, inputs, mermaid, tree_text

TYPES = {"data": "SFTDataArtifact", "model": "ModelArtifact"}
NODE = re.compile(r'  (n\d+)\[(?:\("[^"\[\](){}<>]*"\)|"[^"\[\](){}<>]*(?:<br/>[^"\[\](){}<>]*)?")\]')
LINK = re.compile(r'  (n\d+) -->\|"[^"|<>]*"\| (n\d+)')


def make(store: Store, name: str, *made_from: Artifact, source: str | None = None, text: str = "x") -> Artifact:
    store.home.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(dir=store.home))
    (folder / "file").write_text(name + text)
    kind = TYPES[name.split("-")[-1]]
    roles = {value: key for key, value in TYPES.items()}
    return store.publish(
        folder, name=name, type=kind, fingerprint="f", producer=Producer("s", "v", "0", "0", "", "", None, "", {}),
        parents=[parent.as_parent(roles[parent.manifest.type]) for parent in made_from],
        sources=[Source(source, "0123456789abcdef")] if source else [],
    )  # fmt: skip


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.open(str(tmp_path / "home"))


@pytest.fixture
def diamond(store: Store) -> Artifact:
    """One data set, two models made from it, and a model made from both."""
    data = make(store, "a-data", source="hf://org/raw")
    left, right = make(store, "left-model", data), make(store, "right-model", data)
    return make(store, "top-model", left, right)


def test_a_diamond_is_drawn_once_and_then_referred_to(store: Store, diamond: Artifact) -> None:
    assert tree_text(store, diamond).splitlines() == [
        "top-model:v1  ModelArtifact",
        "├── model: left-model:v1  ModelArtifact",
        "│   └── data: a-data:v1  SFTDataArtifact",
        "│       └── source: hf://org/raw  0123456789ab",
        "└── model: right-model:v1  ModelArtifact",
        "    └── data: a-data:v1  SFTDataArtifact (as above)",
    ]


def test_ancestors_come_once_and_before_their_children(store: Store, diamond: Artifact) -> None:
    found = [artifact.reference for artifact in ancestors(store, diamond)]
    assert found == ["a-data:v1", "left-model:v1", "right-model:v1"]
    assert ancestors(store, store.resolve("a-data")) == []


def test_edges_cover_every_step_from_the_raw_source(store: Store, diamond: Artifact) -> None:
    assert [(edge.input.label, edge.made) for edge in edges(store, diamond)] == [
        ("hf://org/raw", "a-data:v1"),
        ("a-data:v1", "left-model:v1"),
        ("left-model:v1", "top-model:v1"),
        ("a-data:v1", "right-model:v1"),
        ("right-model:v1", "top-model:v1"),
    ]


def test_mermaid_draws_each_node_once_and_links_only_what_it_drew(store: Store, diamond: Artifact) -> None:
    first, *lines = mermaid(store, diamond).splitlines()
    nodes = [match[1] for line in lines if (match := NODE.fullmatch(line))]
    links = [match.groups() for line in lines if (match := LINK.fullmatch(line))]
    assert first == "flowchart LR"
    assert len(nodes) == len(set(nodes)) == 5 and len(links) == 5
    assert len(lines) == len(nodes) + len(links)
    assert {end for link in links for end in link} == set(nodes)


def test_mermaid_escapes_whatever_a_source_is_called(store: Store) -> None:
    hostile = 'x"] --> evil["<script>`**#;|{}()%%\nend'
    made = make(store, "a-data", source=hostile)
    _, *lines = mermaid(store, made).splitlines()
    assert len(lines) == 3
    assert all(NODE.fullmatch(line) or LINK.fullmatch(line) for line in lines)


def test_a_deleted_parent_is_shown_as_missing(store: Store, diamond: Artifact) -> None:
    shutil.rmtree(store.resolve("left-model").path)
    text = tree_text(store, diamond)
    recorded = diamond.manifest.parents[0].digest[:12]
    assert f"├── model: left-model:v1  {recorded}  [missing from the store]" in text
    assert "hf://org/raw" in text  # still reached through the other parent
    assert [artifact.reference for artifact in ancestors(store, diamond)] == ["a-data:v1", "right-model:v1"]
    assert re.search(r"class n\d+ problem", mermaid(store, diamond))


def test_a_parent_replaced_by_other_content_is_flagged(store: Store, diamond: Artifact) -> None:
    shutil.rmtree(store.resolve("left-model").path)
    again = make(store, "left-model", text="other content")
    assert again.reference == "left-model:v1"
    (problem,) = [found.problem for found in inputs(store, diamond) if found.problem]
    assert problem.startswith("changed: was ") and again.manifest.digest[:12] in problem
    assert f"[{problem}]" in tree_text(store, diamond)
    assert "changed" in mermaid(store, diamond)


def test_an_unreadable_parent_is_flagged(store: Store, diamond: Artifact) -> None:
    (store.resolve("left-model").path / "manifest.json").write_text("{")
    assert "[unreadable: " in tree_text(store, diamond)
    assert "unreadable" in mermaid(store, diamond)


def test_numbers_used_twice_cannot_make_the_history_endless(store: Store) -> None:
    old = make(store, "x-model")
    child = make(store, "y-model", old)
    shutil.rmtree(old.path)
    new = make(store, "x-model", child)
    assert new.reference == old.reference  # so that x:v1 now comes from y:v1, which says that it came from x:v1
    assert "x-model:v1  ModelArtifact (as above)" in tree_text(store, new)
    assert [artifact.reference for artifact in ancestors(store, new)] == ["y-model:v1"]
    assert mermaid(store, new).count("-->") == 2


def test_a_source_with_new_content_is_another_source(store: Store) -> None:
    first = make(store, "a-data", source="hf://org/raw")
    second = make(store, "b-data", source="hf://org/raw")
    top = make(store, "top-model", first, second)
    assert mermaid(store, top).count("hf://org/raw") == 1
    manifest = second.path / "manifest.json"
    manifest.write_text(manifest.read_text().replace("0123456789abcdef", "fedcba9876543210"))
    assert mermaid(store, top).count("hf://org/raw") == 2


def test_a_folder_from_outside_has_no_history(store: Store, tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "weights").write_text("w")
    outside = store.resolve(str(tmp_path / "model"))
    assert tree_text(store, outside) == f"{outside.path}  ModelArtifact"
    assert mermaid(store, outside).count("\n") == 1


def test_of_many_sources_people_see_the_first(store: Store) -> None:
    folder = store.home / "work"
    folder.mkdir(parents=True)
    (folder / "file").write_text("x")
    made = store.publish(
        folder, name="a-data", type="SFTDataArtifact", fingerprint="f",
        producer=Producer("s", "v", "0", "0", "", "", None, "", {}),
        sources=[Source(f"raw/{n:04}.jsonl", "0123456789abcdef") for n in range(4000)],
    )  # fmt: skip
    lines = tree_text(store, made).splitlines()
    assert lines[10:] == ["├── source: raw/0009.jsonl  0123456789ab", "└── and 3,990 more sources"]
    assert len(edges(store, made)) == 4000
