"""The table of stages and the vocabulary of metrics: each fact once, and everything that uses it agrees."""

from typing import get_args

from nemotron_shared.artifacts.names import CLASS_NAMES, SHORT_NAMES, parse_reference
from nemotron_shared.stages import STAGES, ArtifactType, products
from nemotron_shared.tracking.metrics import METRICS, RESULT_METRICS, Metric, is_known


def test_every_type_of_artifact_is_made_by_a_stage() -> None:
    imported = {"TokenizerArtifact"}  # which no stage makes
    assert {made.type for made in products()} | imported == set(get_args(ArtifactType))


def test_every_stage_but_the_first_starts_from_one_before_it() -> None:
    order = list(STAGES)
    assert STAGES[order[0]].before is None
    for stage in list(STAGES.values())[1:]:
        assert stage.before is not None and order.index(stage.before) < order.index(stage.name)


def test_names_of_artifacts_come_from_the_table() -> None:
    assert SHORT_NAMES["sft"] == "sft-model" and SHORT_NAMES["eval-data"] == "eval-data"
    assert len(SHORT_NAMES) == 14 and len(CLASS_NAMES) == 8
    assert str(parse_reference("DataBlendsArtifact-rl", "nano3")) == "nano3-rl-data:latest"


def test_every_metric_is_described_and_nothing_else_is_known() -> None:
    assert set(METRICS) == set(get_args(Metric))
    assert set(RESULT_METRICS) <= set(METRICS)
    assert is_known("rewards/brevity/mean") and not is_known("rewards/brevity/std") and not is_known("lss")
