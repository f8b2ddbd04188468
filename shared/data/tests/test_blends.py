import hashlib
import json
from pathlib import Path

import pytest

from nemotron_data.sources.datasets import find_blend, load_blend, realised_weights
from nemotron_shared.system.errors import UserError

STAGES = Path(__file__).parents[3] / "stages"
SHIPPED = {  # data sets, the sum of their weights, and the digest of both
    "pretrain/super3_phase1": (29, 80.4, "315f7c85a60f"),
    "pretrain/super3_phase2": (27, 82.9, "407f87127a47"),
    "pretrain/super3_long_context": (28, 103.6, "ef7228a7dff1"),
    "pretrain/ultra3_phase1": (29, 80.8, "d2f1e7e6bbea"),
    "pretrain/ultra3_phase2": (28, 80.8, "eac466ef3860"),
    "pretrain/nano3": (23, 23, "26d1fb687202"),
    "sft/super3": (12, 58.3, "a475a3cc3f41"),
    "sft/nano3": (12, 12, "4606d7c726aa"),
    "rl/super3": (1, 1, "7953a04ff47c"),
    "rl/nano3": (1, 1, "882e6775dcec"),
    "rl/super3_rlvr1": (1, 1, "7a2771a9b88a"),
    "rl/super3_rlvr2": (1, 1, "7a2014e474b2"),
    "rl/super3_rlvr3": (1, 1, "544256a7d25b"),
    "rl/super3_swe1": (1, 1, "295572db79c3"),
    "rl/super3_swe2": (1, 1, "24626c37ae8d"),
    "rl/super3_rlhf": (1, 1, "69178f65a1df"),
    "rl/lightning35": (1, 1, "5fbe040519d6"),
}
"""The first ten were compared, row by row, with NVIDIA-NeMo/Nemotron at e27b3713; a set that it lists twice, with two
weights, in Ultra's second phase is one row here."""
ENTRY = {"name": "a", "path": "a.jsonl"}
HUB = {"name": "a", "path": "hf://org/name"}


def blend_file(folder: Path, content: object) -> Path:
    path = folder / "blend.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def test_a_blend_keeps_weights_and_completes_local_paths(tmp_path):
    entries = [
        {"name": "web", "path": "web/*.jsonl", "weight": 3, "_why": "big"},
        {"name": "b", "path": "/abs/b.txt", "text_field": "body"},
        {"name": "hub", "path": "hf://org/name", "subset": "en", "split": "train", "weight": 0.05},
        {"name": "store", "path": "s3://bucket/x/*.parquet"},
    ]
    content = {"_comment": "x", "_missing": {"code": {"weight": 1}}, "datasets": entries}
    blend = load_blend(blend_file(tmp_path, content))
    assert [(e.name, e.path, e.weight, e.text_field, e.subset, e.split) for e in blend.datasets] == [
        ("web", str(tmp_path / "web/*.jsonl"), 3.0, None, None, None),
        ("b", "/abs/b.txt", 1.0, "body", None, None),
        ("hub", "hf://org/name", 0.05, None, "en", "train"),
        ("store", "s3://bucket/x/*.parquet", 1.0, None, None, None),
    ]
    split = load_blend(blend_file(tmp_path, {"train": entries[:1], "valid": entries[:1], "test": []}))
    assert [len(split.train), len(split.valid), len(split.test), len(split.datasets)] == [1, 1, 0, 0]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"datasets": [ENTRY], "train": [ENTRY]}, "either 'datasets' or 'train'"),
        ({"datasets": []}, "either 'datasets' or 'train'"),
        ({"valid": [ENTRY]}, "either 'datasets' or 'train'"),
        ({"dataset": [ENTRY]}, "did you mean 'datasets'"),
        ({"datasets": [{**ENTRY, "wieght": 2}]}, "did you mean 'weight'"),
        ({"datasets": [{**ENTRY, "category": "x"}]}, "a comment begins with '_'"),
        ({"datasets": [{**ENTRY, "weight": 0}]}, "datasets.0.weight"),
        ({"datasets": [{**ENTRY, "weight": -1}]}, "datasets.0.weight"),
        ({"datasets": [{**ENTRY, "weight": "2"}]}, "datasets.0.weight"),
        ({"datasets": [{**ENTRY, "weight": True}]}, "datasets.0.weight"),
        ('{"datasets": [{"name": "a", "path": "a", "weight": Infinity}]}', "datasets.0.weight"),
        ({"datasets": [{**ENTRY, "weight": 1e308}]}, "a weight is a number from 1e-18 to 1e+18"),
        ({"datasets": [{**ENTRY, "weight": 5e-324}]}, "datasets.0.weight"),
        ({"datasets": [{**ENTRY, "weight": 10**400}]}, "datasets.0.weight"),
        ({"datasets": [{"name": "a"}]}, "datasets.0.path"),
        ({"datasets": [{**ENTRY, "text_field": ""}]}, "datasets.0.text_field"),
        ({"datasets": [{**HUB, "split": ""}]}, "datasets.0.split"),
        ({"datasets": [ENTRY, HUB]}, "'a' comes twice"),
        ({"datasets": [{**ENTRY, "name": "../up"}]}, "cannot be the name of a folder"),
        ({"datasets": [{**ENTRY, "name": ".."}]}, "cannot be the name of a folder"),
        ({"datasets": [{**ENTRY, "split": "train"}]}, "'split' only belongs to an hf:// path"),
        ({"datasets": [{**ENTRY, "path": "s3://b/a.jsonl", "subset": "x"}]}, "'subset' only belongs to an hf://"),
        ({"datasets": [{**ENTRY, "path": "https://x.test/a.jsonl"}]}, "download it first"),
        ([ENTRY], "blend.json"),
        ("{", "not valid JSON"),
    ],
)
def test_a_wrong_blend_is_refused_with_the_place(tmp_path, content, message):
    with pytest.raises(UserError) as caught:
        load_blend(blend_file(tmp_path, content))
    assert message in str(caught.value)


def test_every_shipped_blend_is_named_here():
    found = {f"{path.parents[2].name}/{path.stem}" for path in STAGES.glob("*/config/blends/*.json")}
    assert found == set(SHIPPED)


@pytest.mark.parametrize("name", SHIPPED)
def test_a_shipped_blend_is_whole(name):
    stage, _, short = name.partition("/")
    path = find_blend(f"blend:{short}", STAGES / stage / "config")
    assert path is not None
    blend = load_blend(path)
    count, total, digest = SHIPPED[name]
    rows = sorted([entry.path, entry.subset or "", entry.weight] for entry in blend.datasets)
    assert hashlib.sha256(json.dumps(rows).encode()).hexdigest().startswith(digest), "another set, or another weight"
    assert len(blend.datasets) == count
    assert sum(entry.weight for entry in blend.datasets) == pytest.approx(total, abs=1e-6)
    assert all(entry.path.startswith("hf://") for entry in blend.datasets)
    assert len({(entry.path, entry.subset) for entry in blend.datasets}) == count
    texts = {"text"} if stage == "pretrain" else {None}
    assert {entry.text_field for entry in blend.datasets} == texts
    assert "_comment" in json.loads(path.read_text())


def test_what_is_not_public_is_said_with_its_weight():
    content = json.loads((STAGES / "pretrain/config/blends/super3_phase1.json").read_text())
    weights = {name: missing["weight"] for name, missing in content["_missing_categories"].items()}
    assert weights == {"code": 14.0, "nemotron-cc-code": 2.1, "crawl++": 1.8, "academic": 1.7}
    assert sum(weights.values()) + SHIPPED["pretrain/super3_phase1"][1] == pytest.approx(100)


def test_an_unknown_shipped_blend_names_the_known_ones(tmp_path):
    with pytest.raises(UserError) as caught:
        find_blend("blend:super3_phase3", STAGES / "pretrain" / "config")
    assert "did you mean 'super3_phase" in str(caught.value.remedy)
    assert "super3_long_context" in str(caught.value.remedy)
    with pytest.raises(UserError, match="this stage ships none"):
        find_blend("blend:any", tmp_path)


@pytest.mark.parametrize(
    ("content", "is_blend"),
    [
        ('{"datasets": []}', True),
        ('\ufeff{"train": [], "valid": []}', True),
        ('{\n  "dataset": [{"name": "a", "path": "b"}]\n}\n', True),  # a blend with a slip
        ('{"data": [{"q": "x"}],\n "other": [{"q": "y"}]}', False),
        ('{"train": [{"q": "x"}],\n "test": [{"q": "y"}]}', False),
        ('{\n  "question": "x",\n  "answer": "y"\n}\n', False),
        ('{\n  "data": []\n}\n', False),
        ('{"text": "one"}\n', False),
        ('{"text": "one"}\n{"text": "two"}\n', False),
        ("[1]", False),
        ("", False),
    ],
)
def test_a_json_file_is_a_blend_by_its_content(tmp_path, content, is_blend):
    path = blend_file(tmp_path, content)
    assert find_blend(str(path), tmp_path) == (path if is_blend else None)


def test_what_names_data_is_no_blend(tmp_path):
    (tmp_path / "folder.json").mkdir()
    (tmp_path / "a.jsonl").write_text('{"datasets": []}')
    (tmp_path / "bytes.json").write_bytes(b"\xff{}")
    (tmp_path / "deep.json").write_text("[" * 5000)
    (tmp_path / "deep_line.json").write_text('{"a": ' + "[" * 5000)
    for source in ("folder.json", "a.jsonl", "bytes.json", "deep.json", "deep_line.json", "absent.json"):
        assert find_blend(str(tmp_path / source), tmp_path) is None
    assert find_blend("synthetic", tmp_path) is None
    assert find_blend("s3://bucket/blend.json", tmp_path) is None


def test_a_large_json_file_is_not_read_to_find_out(tmp_path, monkeypatch):
    monkeypatch.setattr("nemotron_data.sources.datasets.MOST_BLEND_BYTES", 10)
    assert find_blend(str(blend_file(tmp_path, {"datasets": [ENTRY]})), tmp_path) is None


def test_realised_weights_say_shares_and_epochs():
    web, books = realised_weights({"web": 3, "books": 1}, {"web": 100, "books": 300})
    assert web == {
        "name": "web",
        "weight": 3,
        "asked_share": 0.75,
        "tokens": 100,
        "available_share": 0.25,
        "realised_share": 0.75,
        "epochs": 3.0,
    }
    assert books["epochs"] == pytest.approx(1 / 3)
    assert [row["epochs"] for row in realised_weights({"web": 3, "books": 1}, {"web": 100, "books": 300}, 4000)] == [
        pytest.approx(30),
        pytest.approx(10 / 3),
    ]


def test_an_empty_data_set_leaves_its_part_to_the_others():
    rows = realised_weights({"a": 2, "b": 1, "c": 1}, {"a": 0, "b": 10}, budget=100)
    assert [row["asked_share"] for row in rows] == [0.5, 0.25, 0.25]
    assert [row["realised_share"] for row in rows] == [0.0, 1.0, 0.0]
    assert [row["epochs"] for row in rows] == [None, 10.0, None]
    nothing = realised_weights({"a": 1}, {})
    assert (nothing[0]["realised_share"], nothing[0]["available_share"], nothing[0]["epochs"]) == (0.0, 0.0, None)


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ('{"datasets": [\n  {"name": "a", "path": "b"}\n]', "3:2: not valid JSON: Expecting ',' delimiter"),
        ('{"datasets": [{"name": "a", "path": "b"}]', "1:42: not valid JSON: Expecting ',' delimiter"),
        ('{"text": "a"}\n{"text": "b"\n', None),  # rows, one of them broken
        ('{"text": "a"\n{"text": "b"}\n', None),
        ('{\n "data": [{"text": "b"}\n', None),
    ],
)
def test_a_broken_object_is_told_with_its_place_and_rows_are_left_to_their_reader(
    tmp_path: Path, text: str, place: str | None
) -> None:
    path = tmp_path / "blend.json"
    path.write_text(text)
    if place is None:
        assert find_blend(str(path), tmp_path) is None
        return
    with pytest.raises(UserError) as error:
        find_blend(str(path), tmp_path)
    assert error.value.message == f"{path}:{place}"
