"""The files of expectations themselves, and the probe of a model."""

import json
import re
import shlex
from pathlib import Path

import pytest
import yaml

from nemotron_app.check.expectations import all_expectations, choose, read_expectations
from nemotron_app.main import dispatch
from nemotron_shared.config.compose import compose
from nemotron_shared.config.references import resolve
from nemotron_shared.families import architecture
from nemotron_shared.stages import STAGES
from nemotron_shared.system.errors import UserError

ROOT = Path(__file__).resolve().parents[3]
EXPECTED = all_expectations()
MEASURED = ("super3", "ultra3", "super49b")
GOOD = "{id: a, what: a, metric: loss, how: last, pass: {at_most: 1}, remedy: none}"


def test_the_page_shows_a_run_of_the_tiny_recipe() -> None:
    recipe = yaml.safe_load((ROOT / "stages/pretrain/config/expect/tiny.yaml").read_text(encoding="utf-8"))
    steps, page = recipe["when"]["train.train_iters"], (ROOT / "docs" / "check.md").read_text(encoding="utf-8")
    assert f"finished; step {steps} of {steps}\n" in page and f"expected: {recipe['title']} (" in page
    shown = re.findall(r"^pass +(\S+)", page, re.MULTILINE)
    assert shown == [expectation["id"] for expectation in recipe["expectations"]]


def test_the_recipes_of_the_guides_and_the_tiny_ones_have_expectations() -> None:
    names = {one.name for one in EXPECTED}
    assert {"sft/super49b", "rl/super49b", "rl/nano3", "sft/nano3_lora_automodel"} <= names
    assert {f"{stage}/tiny" for stage in ("pretrain", "sft", "rl", "eval")} <= names


@pytest.mark.parametrize("expected", EXPECTED, ids=lambda one: one.name)
def test_expectations_fit_the_recipe_that_they_are_called_after(expected) -> None:
    composed = compose(expected.path.parents[1], expected.path.stem, [])
    assert expected.misfits(resolve(composed.tree, lambda role, field: "x")) == []


@pytest.mark.parametrize("family", MEASURED)
@pytest.mark.parametrize("stage", STAGES)
def test_the_small_twins_that_are_built_as_super3s_are_judged_as_it_is(family: str, stage: str) -> None:
    expected = next(one for one in EXPECTED if one.name == f"{stage}/tiny")
    composed = compose(expected.path.parents[1], "tiny", [f"run.family={family}"])
    config = resolve(composed.tree, lambda role, field: "x")
    assert expected.misfits(config) == []
    assert architecture(f"{family}_tiny") == architecture("super3_tiny"), "its training would be another one"
    config["model"]["architecture"] = "mine.yaml"
    (misfit,) = expected.misfits(config)
    assert misfit.startswith("model.architecture is mine.yaml and not super3_tiny or ultra3_tiny or ")


@pytest.mark.parametrize("expected", EXPECTED, ids=lambda one: one.name)
def test_the_commands_of_the_remedies_are_commands(expected, tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.setenv("NEMOTRON_HOME", str(tmp_path))
    texts = [one.instead.replace("{family}", "super3") for one in expected.content.expectations]
    for command in re.findall(r"`nemotron ([^`]+)`", " ".join(texts)):
        words = shlex.split(command)
        if words[0] in {"check", "data"}:
            with pytest.raises(UserError, match="no artifact"):  # in an empty store
                dispatch(words)
        elif words[0] == "runs":
            with pytest.raises(UserError, match="no run"):
                dispatch(words)
        elif words[0] == "diagnose":  # of a log that is there
            (tmp_path / "LOG").write_text("exitcode  : 18 (pid: 1)")
            assert dispatch(["diagnose", str(tmp_path / words[1])]) in {0, 1}
        else:
            assert dispatch([*words, "--dry-run"]) in {0, 1}, capsys.readouterr()


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        (GOOD.replace("metric: loss", "metric: los"), "no metric 'los'; did you mean 'loss'?"),
        (GOOD.replace("remedy", "remdy"), "unknown key 'expectations.0.remdy'\n  did you mean 'remedy'?"),
        (GOOD.replace("at_most", "at_mst"), "did you mean 'at_most'?"),
        (GOOD.replace("how: last", "how: lst"), "expectations.0.how"),
        (GOOD.replace("metric: loss, how: last", "line: '(', how: count"), "must be a regular expression"),
        (GOOD.replace("metric: loss, how: last", "line: '(A+)+x$', how: count"), "within a repeat may take for ever"),
        (GOOD.replace("metric: loss, how: last", "line: '(a|ab)*', how: count"), "within a repeat may take for ever"),
        (GOOD.replace("at_most: 1", "at_most: .nan"), "expectations.0.pass.at_most"),
        (GOOD.replace("metric: loss, ", ""), "give one of metric, line and file"),
        (GOOD.replace("metric: loss", "line: x"), "count fits a line"),
        (GOOD.replace("how: last", "how: age"), "count and age a file"),
        (f"{GOOD}, {GOOD}", "twice the id a"),
    ],
)
def test_a_mistake_in_a_file_is_named(tmp_path: Path, rule: str, said: str) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(f"title: mine\nwhen: {{}}\nexpectations: [{rule}]\n")
    with pytest.raises(UserError) as caught:
        read_expectations(file)
    assert said in str(caught.value) and str(file) in str(caught.value)


@pytest.mark.parametrize("text", ["- a\n", "a: [\n", "\xff"])
def test_a_file_that_is_no_mapping_is_an_error(tmp_path: Path, text: str) -> None:
    (tmp_path / "mine.yaml").write_text(text, encoding="latin-1")
    with pytest.raises(UserError, match=r"mine\.yaml"):
        read_expectations(tmp_path / "mine.yaml")


SUPER_49B = {
    "architectures": ["DeciLMForCausalLM"],
    "model_type": "nemotron-nas",
    "num_hidden_layers": 2,
    "block_configs": [{"attention": {"no_op": True}}, {"attention": {"no_op": False}}],
}
MODELS = [
    (SUPER_49B, 0, "has block_configs: yes: 2 layers of 2 different kinds"),
    ({**SUPER_49B, "block_configs": None}, 1, "has block_configs: no, although DeciLMForCausalLM cannot be built"),
    ({**SUPER_49B, "num_hidden_layers": 80}, 1, "of 2 layers, and num_hidden_layers is 80"),
    ({"architectures": ["NemotronHForCausalLM"], "model_type": "nemotron_h"}, 0, "has block_configs: no: standard"),
    ({}, 0, "architecture: not said"),
]


@pytest.mark.parametrize(("config", "code", "said"), MODELS)
def test_a_model_folder_says_whether_its_layers_are_described_one_by_one(
    tmp_path: Path, capsys, config: dict, code: int, said: str
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert dispatch(["check", str(tmp_path)]) == code
    out = capsys.readouterr().out
    assert said in out and f"model type: {config.get('model_type', 'not said')}" in out
    assert dispatch(["check", str(tmp_path), "--json"]) == code
    assert json.loads(capsys.readouterr().out)["block_configs"] is bool(config.get("block_configs"))


def test_a_model_of_the_hub_is_probed_by_its_config_alone(tmp_path: Path, capsys, monkeypatch) -> None:
    (tmp_path / "config.json").write_text(json.dumps(SUPER_49B))

    def download(name: str, file: str) -> str:
        assert (name, file) == ("nvidia/Llama-3_3-Nemotron-Super-49B-v1_5", "config.json")
        return str(tmp_path / file)

    monkeypatch.setattr("huggingface_hub.hf_hub_download", download)
    monkeypatch.setattr("huggingface_hub.HfApi.model_info", lambda self, name: None)
    for name in ("nvidia/Llama-3_3-Nemotron-Super-49B-v1_5", "hf://nvidia/Llama-3_3-Nemotron-Super-49B-v1_5"):
        assert dispatch(["check", name]) == 0
        assert "architecture: DeciLMForCausalLM (heterogeneous)" in capsys.readouterr().out


def test_a_hub_that_is_not_reached_is_said_at_once(monkeypatch) -> None:
    """The library would try a download five times, with seconds in between."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr("huggingface_hub.hf_hub_download", lambda *_: pytest.fail("downloaded"))

    error = type("ConnectError", (Exception,), {"__module__": "httpx"})

    def refuse(self, name: str) -> None:
        raise error("no way")

    monkeypatch.setattr("huggingface_hub.HfApi.model_info", refuse)
    with pytest.raises(UserError, match=r"hf://local/tiny: the hub at .* does not answer as it should: ConnectError"):
        dispatch(["check", "hf://local/tiny"])


def test_the_copy_of_a_result_is_a_model(tmp_path: Path, capsys) -> None:
    (tmp_path / "config.json").write_text(json.dumps(SUPER_49B))
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "loss": 2}\n')
    assert dispatch(["check", str(tmp_path)]) == 0
    assert "a model folder" in capsys.readouterr().out


def test_completions_and_pairs_are_judged_by_their_own_health() -> None:
    engine = {"engine": {"name": "trl"}, "train": {"train_iters": 5}}
    assert choose(None, "rl", engine).name == "rl/local"
    assert choose(None, "rl", engine | {"dpo": {"global_batch_size": 8}}).name == "rl/dpo"
    assert choose(None, "rl", engine | {"reward_modeling": {"global_batch_size": 8}}).name == "rl/dpo"
