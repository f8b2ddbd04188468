"""What a dry run says of published data: each shipped blend is in the table, and what is not public is named."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import ValidationError

from nemotron_data.sources.published import TABLE, Table, availability, table

STAGES = Path(__file__).parents[3] / "stages"
BLENDS = sorted(STAGES.glob("*/config/blends/*.json"))


def told(source: Any, stage: str = "pretrain") -> list[str]:
    findings = list(availability({"data_prep": {"source": source}}, STAGES / stage / "config"))
    assert {finding.level for finding in findings} <= {"note"}, "it prevents nothing"
    return [finding.message for finding in findings]


@pytest.mark.parametrize("blend", BLENDS, ids=lambda path: f"{path.parts[-4]}-{path.stem}")
def test_all_of_a_shipped_blend_is_in_the_table(blend: Path) -> None:
    content = json.loads(blend.read_text())
    for entry in content["datasets"]:
        assert "/".join(entry["path"].removeprefix("hf://").split("/")[:2]) in table().data
    assert content.get("_missing_categories", {}).keys() <= table().missing.keys()
    told(f"blend:{blend.stem}", blend.parts[-4])


def test_gated_sets_are_named_once_each_and_what_was_never_released_with_its_weight() -> None:
    first, second, math, lacks = told("blend:super3_phase1")
    terms = "is gated under the NVIDIA Data Agreement for Model Training: ask for access on its page, then set HF_TOKEN"
    assert first == f"nvidia/Nemotron-CC-v2 {terms}; the nearest public data: HuggingFaceFW/fineweb-edu"
    assert second.startswith("nvidia/Nemotron-CC-v2.1 is gated")
    assert math.endswith("HuggingFaceTB/finemath")
    assert lacks.startswith(
        "not released, by weight in the blend: code 14 (codeparrot/github-code), nemotron-cc-code 2.1"
    )
    (lacks,) = told("blend:super3", "sft")
    assert "search 0.5 (nothing near)" in lacks
    assert told("blend:lightning35", "rl") == []


def test_a_set_of_the_hub_may_be_named_without_a_blend() -> None:
    (gated,) = told(["hf://nvidia/Nemotron-CC-Math-v1@main/4plus/part.parquet", "hf://my/own", "rows.jsonl"])
    assert gated.startswith("nvidia/Nemotron-CC-Math-v1 is gated")
    assert told("hf://nvidia/Nemotron-CC-Math-v1")
    assert told("hf://nvidia/Nemotron-CC-v2.1@abc")[0].startswith("nvidia/Nemotron-CC-v2.1 ")
    for source in ("synthetic", None, [], 3, [3], {"a": 1}, "s3://nvidia/Nemotron-CC-v2"):
        assert told(source) == [], "what is no source has an error of its own"
    assert list(availability({}, STAGES)) == list(availability({"data_prep": 3}, STAGES)) == []


def test_comments_of_an_own_blend_are_the_owners(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text("{}\n")
    blend = tmp_path / "mine.json"
    blend.write_text(json.dumps({"_missing_categories": 3, "datasets": [{"name": "a", "path": "rows.jsonl"}]}))
    assert told(str(blend)) == []


@pytest.mark.parametrize("stand_in", ["nvidia/Nemotron-CC-v2", "nobody/nothing"])
def test_a_stand_in_is_public_itself(stand_in: str) -> None:
    content = yaml.safe_load(TABLE.read_text())
    content["missing"]["code"] = stand_in
    with pytest.raises(ValidationError, match=f"{stand_in} is a stand-in, and not a public row"):
        Table.model_validate(content)
