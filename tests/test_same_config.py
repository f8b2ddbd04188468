"""`python`, `torchrun` and `nemotron` load the identical resolved configuration."""

from itertools import product
from pathlib import Path

import pytest
from lanes import slow
from support import ROOT, STAGES, last_json, nemotron, script, torchrun

from nemotron_shared.config.compose import compose

CONFIGS = ("default", "nano3")
"""A recipe of the default family and one of another; each takes four processes to load."""


@pytest.mark.parametrize(("stage", "config"), slow(*product(STAGES, CONFIGS)))
def test_three_ways_in_one_config(run, stage: str, config: str) -> None:
    family = compose(ROOT / "stages" / stage / "config", config, []).tree.run.family
    options = ["-c", config, "run.seed=7", "--dry-run", "--json"]
    ways = [
        script(stage),
        torchrun(stage),
        nemotron(family, stage),
        nemotron(*options[:2], family, stage),
    ]
    resolved = [last_json(run(*way, *options, ok=False))["config"] for way in ways[:3]]
    resolved.append(last_json(run(*ways[3], *options[2:], ok=False))["config"])
    assert resolved[0]["run"]["seed"] == 7
    assert resolved[0] == resolved[1] == resolved[2] == resolved[3]


@pytest.mark.parametrize("stage", STAGES)
def test_data_preparation_reads_the_same_file(run, stage: str) -> None:
    options = ["-c", "tiny", "--dry-run", "--json"]
    direct = last_json(run(*script(stage, "data_prep"), *options, "--sample", "9"))
    by_name = last_json(run(*nemotron("super3", "data", "prep", stage), *options, "sample=9"))
    assert direct["config"] == by_name["config"]
    assert direct["config"]["data_prep"]["sample"] == 9


def test_a_path_is_as_good_as_a_name(run, tmp_path: Path) -> None:
    by_name = last_json(run(*script("sft"), "-c", "tiny", "--dry-run", "--json"))
    file = ROOT / "stages" / "sft" / "config" / "tiny.yaml"
    assert last_json(run(*script("sft"), "--config", str(file), "--dry-run", "--json"))["config"] == by_name["config"]


def test_the_family_reaches_the_artifact_names(run) -> None:
    preview = last_json(run(*nemotron("nano3", "sft", "-c", "tiny", "--dry-run", "--json")))
    assert preview["produces"] == "nano3-sft-model"
    assert preview["config"]["run"]["data"] == "nano3-sft-data:latest"
