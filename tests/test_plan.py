"""`nemotron plan`, for every config of every training."""

import json
import re
from functools import partial
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from support import ROOT
from transformers import LlamaConfig, LlamaForCausalLM

from nemotron_app.main import dispatch, main
from nemotron_app.plan import parse_gpus
from nemotron_app.request import Request
from nemotron_data.tokenizers.folder import provide_tokenizer
from nemotron_shared.system.errors import UserError
from stages.pretrain import train as pretrain
from stages.sft import train as sft

CONFIGS = [
    f"{stage}/{file.stem}"
    for stage in ("pretrain", "sft", "rl")
    for file in sorted((ROOT / "stages" / stage / "config").glob("*.yaml"))
]
FEW = ("pretrain/super3", "sft/tiny", "rl/nano3")
NO_SIZE = (
    "one_gpu",
    "local",
    "qa",
    "dpo",
    "reward",
    "drawers",
    "drawers_text",
    "nano3_lora_automodel",
    "nano3_lora_one_gpu",
)
"""Configs that say nothing of GPUs: they are planned for the machine that asks."""

TOO_FEW = ("pretrain/nano3", "sft/nano3", "sft/ultra3")
"""Bridge names these recipes after fewer GPUs than hold them: its own Slurm scripts start them on 4, 2 and 48 nodes."""


@pytest.fixture(autouse=True)
def empty_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEMOTRON_HOME", str(tmp_path / "home"))


def plan(capsys: pytest.CaptureFixture[str], *words: str) -> list[dict]:
    capsys.readouterr()
    assert main(["plan", *words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize(
    "config", [one if one in FEW else pytest.param(one, marks=pytest.mark.slow) for one in CONFIGS]
)
def test_every_config_has_a_plan(config: str, capsys: pytest.CaptureFixture[str]) -> None:
    (found,) = plan(capsys, config)
    estimate = found["estimate"]
    assert estimate["parameters"] >= estimate["active"] > 0
    assert sum(estimate["step_seconds"].values()) > 0 and estimate["disk"] >= estimate["result"] > 0
    assert estimate["assumptions"]
    assert (estimate["seconds"] is None) == estimate["steps_are_a_limit"] == (estimate["steps"] >= 10**6)
    if config.endswith(("tiny", "tiny_mtp")):
        # rows of pairs are estimated as long as the context; DPO trains beside a second model
        most, longest = (8e9, 900) if config in ("rl/dpo_tiny", "rl/reward_tiny") else (1.6e9, 300)
        assert 1e9 < sum(estimate["memory"].values()) < most  # the process counts, too
        assert estimate["device"] == "CPU core" and estimate["seconds"] < longest
    elif not config.endswith(NO_SIZE):
        assert estimate["device"] == "H100" and estimate["fits"] == (config not in TOO_FEW), estimate["memory"]
        assert not any(re.search("cannot be shared out|cannot split", problem) for problem in found["problems"])


def test_the_costs_on_the_page_are_those_of_the_plan(capsys: pytest.CaptureFixture[str]) -> None:
    page = (ROOT / "docs" / "plan.md").read_text().partition("## What it costs")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (\S+) (\S+xH100)(, 100 steps)? \| (.+) \| (.+) \| (.+) \| (.+) \|$", page, re.MULTILINE)
    assert len(rows) == 4
    for config, gpus, few, *shown in rows:
        (found,) = plan(capsys, config, gpus, "--price", "2.5")
        said = dict(line.split(": ", 1) for line in found["estimated"])
        parameters, (time, hours) = (
            said["parameters"].split(",")[0],
            said["100 steps" if few else "all steps"].split(", "),
        )
        cost = re.sub(" for 100 steps", "", said["cost"].partition(", at")[0])
        assert shown == [parameters, time, hours.removesuffix(" GPU hours"), cost], (config, said)
        assert found["estimate"]["cost_steps"] == (100 if few else found["estimate"]["steps"])


def test_a_price_is_a_number(capsys: pytest.CaptureFixture[str]) -> None:
    for price in ("nan", "inf", "-1", "cheap"):
        assert main(["plan", "sft/tiny", "--price", price]) == 2
        assert "--price" in capsys.readouterr().err


def test_gpus_are_those_that_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    (few,), (many,) = (plan(capsys, "pretrain/super3", gpus) for gpus in ("64xGB200", "128xGB200"))
    assert [few["estimate"]["devices"], many["estimate"]["devices"]] == [64, 128]
    assert few["estimate"]["device"] == "GB200"
    assert few["estimate"]["seconds"] > 1.8 * many["estimate"]["seconds"]


def test_few_tokens_a_second_are_not_none(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "sft/local"]) == 0
    assert re.search(r", 0\.\d+ tokens/s on each", capsys.readouterr().out)


def test_settings_change_the_plan(capsys: pytest.CaptureFixture[str]) -> None:
    (usual,), (long) = plan(capsys, "pretrain/tiny"), plan(capsys, "pretrain/tiny", "train.train_iters=4500")[0]
    assert long["estimate"]["seconds"] == pytest.approx(10 * usual["estimate"]["seconds"])


def test_a_name_alone_is_every_training_that_has_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert [one["stage"] for one in plan(capsys, "tiny")] == ["pretrain", "sft", "rl"]


def test_a_file_of_ones_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("defaults: [tiny, _self_]\ntrain:\n  train_iters: 7\n")
    (found,) = plan(capsys, str(file), "--stage", "sft")
    assert found["estimate"]["steps"] == 7
    with pytest.raises(UserError, match="the stage is ambiguous"):
        dispatch(["plan", str(file)])
    file.write_text("defaults: [tiny, _self_]\nrewards: [{name: strict, weight: 1.0}]\n")
    assert [one["stage"] for one in plan(capsys, str(file))] == ["rl"], "no other stage has rewards"


def test_the_recipe_is_planned_whatever_the_store_holds(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def looked(*asked: object, **more: object) -> None:
        raise AssertionError("the store was asked for an artifact")

    monkeypatch.setattr("nemotron_app.plan.dry_run_of", partial(here, capsys))
    monkeypatch.setattr("nemotron_shared.artifacts.store.Store.resolve", looked)
    monkeypatch.setattr("nemotron_shared.step.inputs.find", looked)
    for config in ("sft/super3", "sft/nano3_lora_one_gpu"):
        (found,) = plan(capsys, config)
        assert found["estimate"]["architecture"].startswith(f"{config[4:].partition('_')[0]}, which")
        assert found["estimate"]["parameters"] > 30e9
        assert any("was not read" in said for said in found["estimate"]["assumptions"])
    mine = tmp_path / "mine.yaml"
    mine.write_text("defaults: [super3, _self_]\nrun:\n  model: super3-pretrain-model\n")
    for words in (["sft/super3", "run.model=super3-pretrain-model"], [str(mine), "--stage", "sft"]):
        with pytest.raises(AssertionError, match="the store was asked"):
            plan(capsys, *words)


def here(
    capsys: pytest.CaptureFixture[str], stage: str, request: Request, machine: dict | None, *, config_alone: bool
) -> dict:
    """The dry run in this process."""
    file = Path(request.overrides[-1].partition("=")[2]).parent / "machine.yaml"
    file.write_text(json.dumps(machine))
    words = ["-c", str(request.config), *request.overrides, "--dry-run", "--json", "--config-alone"]
    assert config_alone and sft.main([*words, *(["--machine", str(file)] if machine else [])]) in (0, 1)
    return json.loads(capsys.readouterr().out)


def test_little_room_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "sft/super3"]) == 0
    assert "TIGHT, 653.5 MB left; 10 % should be free" in capsys.readouterr().out


def test_a_limit_is_no_plan(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "rl/nano3"]) == 0
    shown = capsys.readouterr().out
    assert "1,000,000 steps are an upper limit" in shown and "100 steps" in shown and "all steps" not in shown


def test_what_does_not_fit_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "sft/nano3", "L40S"]) == 0
    shown = capsys.readouterr().out
    assert "DOES NOT FIT" in shown and "what would stop it" in shown and "assumed" in shown


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["192xH100", "engine.tensor_model_parallel_size=3"], "32 attention heads"),
        (["48xH100", "engine.expert_model_parallel_size=24"], "512 routed experts into 24 parts"),
    ],
)
def test_a_layout_that_megatron_refuses_is_told(
    words: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", "pretrain/super3", *words]) == 0
    shown = capsys.readouterr().out
    assert "what would stop it" in shown and told in shown and f"set {words[1].partition('=')[0]} to one of" in shown


def test_the_optimizer_of_an_unknown_recipe_is_assumed_large(capsys: pytest.CaptureFixture[str]) -> None:
    (found,) = plan(capsys, "pretrain/nano3", "engine.recipe=qwen.qwen3.qwen3_8b_pretrain_config")
    assert any("12 bytes per parameter" in said for said in found["estimate"]["assumptions"])
    (known,) = plan(capsys, "pretrain/nano3")
    assert known["estimate"]["memory"]["optimizer"] == 12 * known["estimate"]["parameters"] / 8
    assert not any("12 bytes" in said for said in known["estimate"]["assumptions"])


@pytest.mark.parametrize(
    ("words", "said", "remedy"),
    [
        (["pretrain/supr3"], "no config named 'supr3'", "super3"),
        (["sft", "8xH100"], "'sft' is a stage", "sft/nano3"),
        (["pretain/super3"], "no stage 'pretain'", "pretrain"),
        (["none.yaml"], "file none.yaml not found", "STAGE/NAME"),
        (["sft/tiny", "--", "-1"], "'-1' is not a GPU count", "64xH100"),
        (["sft/tiny", "engine.peft=lora"], "engine.peft is a section, and not 'lora'", "engine.peft={alpha: ..., dim"),
        (["sft/nano3", "0xH100"], "0 GPUs", "64xH100"),
        (["sft/nano3", "999999999xH100"], "999999999 GPUs", "100,000"),
        (["sft/nano3", "8xFOO"], "no GPU named 'FOO' is known", "A100-40GB, A100-80GB, H100"),
        (["sft/nano3", "H100x8"], "no GPU named 'H100x8'", "did you mean '8xH100'?"),
        (["sft/nano3", "8x4090"], "no GPU named '4090'", "did you mean 'RTX 4090'?"),
        (["sft/nano3", "1e3xH100"], "no GPU named '1e3xH100'", "did you mean 'H100'?"),
        (["sft/nano3", "8xA100-60GB"], "no GPU named 'A100-60GB'", "did you mean 'A100-80GB'?"),
        (["rl/nano3", "12xH100"], "takes whole nodes", "8xH100 or 16xH100"),
        (["eval/tiny"], "an evaluation trains nothing", "sft/tiny"),
        (["sft/nano3", "H100", "A100"], "two words for the GPUs", "64xH100"),
        (["sft/tiny", "train.train_itrs=3"], "train.train_itrs", "train_iters"),
        (["sft/nano3", "train.train_iters=x"], "train.train_iters", ""),
    ],
)
def test_what_makes_no_sense_is_refused(
    words: list[str], said: str, remedy: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", *words]) == 2
    told = capsys.readouterr().err
    assert said in told and remedy in told


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("64xH100", (64, "H100")),
        ("64", (64, "H100")),
        ("GB300", (1, "GB300")),
        ("2 x RTX 4090", (2, "RTX 4090")),
        ("8xRTX4090", (8, "RTX 4090")),
        ("8xA100-40GB", (8, "A100-40GB")),
        ("8xA100", (8, "A100-80GB")),
        ("NVIDIA H100 80GB HBM3", (1, "H100")),
    ],
)
def test_words_for_gpus(text: str, meant: tuple[int, str]) -> None:
    assert parse_gpus(text) == meant


def test_a_dry_run_shows_the_estimate(capsys: pytest.CaptureFixture[str]) -> None:
    assert pretrain.main(["-c", "tiny", "--dry-run"]) == 0
    shown = capsys.readouterr().out
    assert "# estimate, by arithmetic (docs/plan.md)\narchitecture: super3_tiny, which model.architec" in shown
    assert "\nparameters: 306k, 232k active" in shown
    assert "all steps: " in shown


def test_a_model_of_another_kind_is_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    llama = LlamaConfig(
        vocab_size=320, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, bos_token_id=None, eos_token_id=0,
    )  # fmt: skip
    model = LlamaForCausalLM(llama)
    model.save_pretrained(tmp_path / "llama")
    provide_tokenizer("tiny", tmp_path / "llama")
    for config in ("sft/local", "pretrain/local", "rl/local", "rl/dpo"):
        (found,) = plan(capsys, config, "1xH100", f"run.model={tmp_path / 'llama'}")
        estimate = found["estimate"]
        assert estimate["parameters"] == estimate["active"] == model.num_parameters()
        assert estimate["memory"]["weights"] == (8 if config == "rl/dpo" else 4) * model.num_parameters()
        assert sum(estimate["step_seconds"].values()) > 0
        assert "llama: counted from its tensors, as equal layers of attention, MLPs" in estimate["assumptions"]
    assert main(["plan", "sft/local", "1xH100", f"run.model={tmp_path / 'llama'}"]) == 0
    told = capsys.readouterr().out
    assert "memory" in told and "all steps" in told
    # what cannot be counted is one error, and not silence
    save_file({"blob": torch.zeros(4, 4)}, tmp_path / "llama" / "model.safetensors")
    assert main(["plan", "sft/local", "1xH100", f"run.model={tmp_path / 'llama'}"]) == 2
    assert "the names of its tensors tell no layers" in capsys.readouterr().err


def layout_of(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    (found,) = plan(capsys, "sft/tiny", "train.global_batch_size=4096", *words)
    return found["estimate"]["layout"]


def test_the_rows_of_a_pass_follow_from_speed_and_memory(capsys: pytest.CaptureFixture[str]) -> None:
    rows = int(layout_of(capsys).split()[0])
    assert 8 < rows < 4096  # enough to be fast
    fewer = int(layout_of(capsys, "run.memory=1.1GB").split()[0])
    assert fewer < rows
    assert (
        layout_of(capsys, "run.memory=1.1GB", "train.micro_batch_size=64") == "64 rows of 64 a pass"
    )  # as it was told
    (found,) = plan(capsys, "sft/tiny", "run.memory=1.1GB", "train.global_batch_size=4096")
    assert sum(found["estimate"]["memory"].values()) <= 1.1e9 and not found["problems"]


def test_rows_are_as_long_as_those_of_the_data(capsys: pytest.CaptureFixture[str]) -> None:
    few = ["-c", "tiny", "data_prep.synthetic_chats=60"]
    assert main(["super3", "data", "prep", "sft", *few, "data_prep.pack_size=128"]) == 0
    capsys.readouterr()
    main(["super3", "sft", "-c", "tiny", "run.data=super3-sft-data:v1", "--dry-run", "--json"])
    assert json.loads(capsys.readouterr().out)["estimate"]["layout"] == "8 rows of 128 a pass"


def test_made_up_pairs_are_as_long_as_they_will_be(capsys: pytest.CaptureFixture[str]) -> None:
    """Those of the tiny configs take all of a step's pairs a pass, with data and without."""
    found = [plan(capsys, config)[0]["estimate"]["layout"] for config in ("rl/dpo_tiny", "rl/reward_tiny")]
    rows = [re.fullmatch(r"32 rows of (\d+) a pass, each a pair", one) for one in found]
    assert all(one and 40 < int(one[1]) < 200 for one in rows), found


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["run.memory=500MB"], "run.memory=500MB: a step takes about 1.1 GB with 1 row a pass"),
        (["run.memory=500MB", "train.micro_batch_size=4"], "a step takes about 1.1 GB with 4 rows a pass"),
        (["run.memory=2GB", "engine=automodel"], "run.memory=2GB bounds nothing with engine=automodel"),
    ],
)
def test_a_budget_that_does_not_suffice_is_one_problem(
    words: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (found,) = plan(capsys, "sft/tiny", *words)
    assert [told in problem for problem in found["problems"] if "run.memory" in problem] == [True], found["problems"]


@pytest.mark.parametrize("words", [[], ["engine=transformers_lora"], ["run.nproc_per_node=2"]])
def test_the_budget_that_a_refusal_asks_for_suffices(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    (found,) = plan(capsys, "sft/tiny", "run.memory=1GB", *words)
    (problem,) = [one for one in found["problems"] if "run.memory" in one]
    asked = re.findall(r"set (run\.memory=\S+) or more", problem)
    assert ("processes" in problem) == ("run.nproc_per_node=2" in words)
    assert ("train adapters" in problem) != ("engine=transformers_lora" in words)
    (found,) = plan(capsys, "sft/tiny", *asked, *words)
    assert not [one for one in found["problems"] if "run.memory" in one]


@pytest.mark.parametrize("memory", ["lots", "2", "0GB", "-1GB", "2 PB"])
def test_a_budget_is_a_number_with_a_unit(memory: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["super3", "sft", "-c", "tiny", f"run.memory={memory}", "--dry-run"]) != 0
    said = capsys.readouterr()
    assert "run.memory" in said.err + said.out and "2GB, 512MiB or 80%" in said.err + said.out
