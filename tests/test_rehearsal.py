"""A training is rehearsed before anything is prepared: what would fail is said, and nothing stays behind."""

import json
import subprocess
from dataclasses import replace
from functools import partial
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import forked_rehearsals
import pytest
import torch
from support import call_here, last_values, make_model, short
from test_zoo import write_chats
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
from zoo import write

from nemotron_app.launch import module_and_words
from nemotron_app.main import main
from nemotron_engines.checks import TRAINING_BYTES
from nemotron_engines.modeling import cut
from nemotron_engines.modeling.architecture import parameters_in
from nemotron_engines.modeling.build import require_tokens
from nemotron_shared.artifacts import Artifact
from nemotron_shared.engine.spec import Step
from nemotron_shared.machine.machine import Machine
from nemotron_shared.step import rehearsal
from nemotron_shared.step.arguments import Arguments
from nemotron_shared.step.records import CODE
from nemotron_shared.step.rehearsal import BEFORE, Make
from nemotron_shared.step.remembered import remember
from nemotron_shared.system.errors import UserError
from nemotron_shared.system.process import ending_with_us
from stages.sft import data_prep, train


def words(folder: Path, *overrides: str) -> list[str]:
    write_chats(folder.parent / "chats.jsonl")
    where = [f"run.home={folder.parent / 'home'}", f"run.model={folder}", f"data_prep.tokenizer.model={folder}"]
    data = [f"data_prep.source={folder.parent / 'chats.jsonl'}", "data_prep.pack_size=128", "run.missing_data=prepare"]
    plain = "data_prep.chat_template=plain"
    return last_values(["-c", "local", *where, *data, plain, *overrides])


def rehearse(folder: Path, *overrides: str) -> int:
    return train.main([*words(folder, *overrides), "--rehearse"])


@pytest.mark.slow
def test_a_large_model_is_rehearsed_small_and_leaves_nothing_behind(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("tmp", "home"):
        (tmp_path / name).mkdir()
    lent, make_small = [], rehearsal._train

    def note_digests(step: Step, make: Make, arguments: Arguments, changes: list[str]) -> Artifact:
        there = next(one.partition("=")[2] for one in changes if one.startswith("run.home="))
        lent.append((Path(there) / CODE).read_bytes() == (tmp_path / "home" / CODE).read_bytes())
        return make_small(step, make, arguments, changes)

    monkeypatch.setattr(rehearsal, "_train", note_digests)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    folder = write("llama", tmp_path / "model")
    sizes = {"hidden_size": 256, "intermediate_size": 1024, "num_hidden_layers": 6, "num_attention_heads": 8}
    config = AutoConfig.for_model("llama", vocab_size=358, **sizes)
    AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).save_pretrained(folder)
    assert rehearse(folder, "engine=transformers_lora") == 0
    assert "rehearsed: one step" in (told := capsys.readouterr().err)
    assert "2 of its 6 layers, 64 of 256 wide" in told
    assert lent == [True], "the temporary store has the digests of our code that the real one keeps"
    assert not any((tmp_path / "home").glob("artifacts/*")) and not any((tmp_path / "home").glob("runs/*"))
    assert not any((tmp_path / "tmp").iterdir())
    assert data_prep.main([one for one in words(folder) if not one.startswith("run.missing_data")]) == 0
    capsys.readouterr()
    assert rehearse(folder, "engine=transformers_lora", "optimizer.lr=1e-3") == 0, "its data is there already"
    assert "rehearsed: one step" in capsys.readouterr().err


@pytest.mark.slow
def test_dry_runs_and_starts_rehearse_a_model_from_elsewhere(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, short = write("qwen3", tmp_path / "model"), ["train.train_iters=2", "checkpoint.save_interval=1"]
    asked = [*words(folder, *short), "--dry-run"]
    with monkeypatch.context() as as_users_have_it:  # in a new process
        forked_rehearsals.change(partial(as_users_have_it.setattr, rehearsal), ending_with_us, subprocess)
        assert train.main(asked) == 0
    told = capsys.readouterr()
    assert "rehearsed: one step" in told.out and told.err.count("rehearsing one step") == 1, "it takes a while"
    assert not any((tmp_path / "home").glob("artifacts/*"))
    assert train.main([*asked, "engine.attn_implementation=flash_attention_2"]) == 1
    assert "the package for FlashAttention2" in (said := capsys.readouterr().out) and str(folder) in said
    broken = words(folder, *short, "engine=transformers_lora", "engine.peft.target_modules=[nope]")
    assert train.main(broken) == 2
    assert "error: engine.peft.target_modules: 'nope' matches no layer" in capsys.readouterr().err
    assert not any((tmp_path / "home").glob("artifacts/*")), "nothing is prepared for a training that fails"
    assert train.main(words(folder, *short)) == 0 and capsys.readouterr().err.count(BEFORE) == 1
    found = ["-c", "local", f"run.home={folder.parent / 'home'}", f"run.model={folder}", "train.train_iters=3"]
    assert train.main([*found, "--dry-run"]) == 0, "with the data that is there, whose settings are not given again"
    assert "rehearsed: one step" in capsys.readouterr().out
    again = words(folder, "run.model=sft", "run.force=true", "train.train_iters=1")
    assert train.main(again) == 0 and "rehearsed" not in capsys.readouterr().err, "its model was trained here"


@pytest.mark.slow
def test_a_config_that_prepares_its_own_data_is_rehearsed_with_what_is_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_model(tmp_path / "model")
    words = [*short("sft"), f"run.home={tmp_path / 'home'}", f"run.model={tmp_path / 'model'}"]
    assert data_prep.main(words) == 0
    assert train.main([*words, "--rehearse"]) == 0
    assert "rehearsed: one step" in capsys.readouterr().err


@pytest.mark.slow
def test_adapters_that_finetune_chooses_are_rehearsed(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write("llama", tmp_path / "model")
    write_chats(tmp_path / "chats.jsonl")
    here = Machine.here(tmp_path)
    needed = TRAINING_BYTES * parameters_in(folder).total
    small = replace(here, memory=int(needed / 0.8))  # enough to train all weights, but not for anything besides
    monkeypatch.setattr(Machine, "here", lambda *_: small)
    monkeypatch.setattr("nemotron_app.finetune.plan.run_process", call_here)
    words = ["finetune", str(folder), str(tmp_path / "chats.jsonl"), "--dry-run", "data_prep.chat_template=plain"]
    assert main([*words, f"run.home={tmp_path / 'home'}"]) == 0
    assert "rehearsed: one step" in capfd.readouterr().err
    monkeypatch.setattr("nemotron_app.finetune.plan.run_process", None)
    assert main([*words, f"run.home={tmp_path / 'home'}"]) == 0, "no process is asked for what one has remembered"
    assert f"[sft] {BEFORE}" in capfd.readouterr().err


@pytest.mark.slow
def test_what_would_fail_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write("qwen3", tmp_path / "model")
    assert rehearse(folder, "engine.attn_implementation=flash_attention_2") == 2
    assert "FlashAttention2" in (told := capsys.readouterr().err) and "Traceback" not in told
    assert str(folder) in told and "rehearsal-" not in told
    assert rehearse(folder, "engine=transformers_lora", "engine.peft.target_modules=[nope]") == 2
    assert "'nope' matches no layer" in capsys.readouterr().err
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"intermediate_size": 48}))
    assert rehearse(folder) == 2
    assert "of another shape" in capsys.readouterr().err


def test_stopping_a_rehearsal_leaves_nothing_to_continue(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def stop(*_: object, **more: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("nemotron_shared.step.rehearsal.subprocess.run", stop)
    assert train.main(words(write("qwen3", tmp_path / "model"))) == 130
    said = capsys.readouterr().err
    assert "[sft] rehearsing one step with random weights\ninterrupted; nothing was begun" in said
    assert not any((tmp_path / "home" / place).exists() for place in ("runs", "artifacts"))


def test_tokens_that_would_not_be_seen_again_are_refused(tmp_path: Path) -> None:
    folder = write("qwen2", tmp_path / "model")
    require_tokens(folder)
    files = {name: (folder / name).read_text() for name in ("tokenizer.json", "tokenizer_config.json", "config.json")}

    def refusal(name: str, **changes: object) -> str:
        (folder / name).write_text(json.dumps(json.loads(files[name]) | changes))
        with pytest.raises(UserError) as refused:
            require_tokens(folder)
        (folder / name).write_text(files[name])
        return str(refused.value)

    other = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}
    said = refusal("tokenizer.json", pre_tokenizer=other)
    assert "tokenizer.json splits 'It is 18:...' into other tokens than Qwen2Tokenizer of transformers" in said
    assert "eos_token '<|fin|>' is not a token of tokenizer.json" in refusal(
        "tokenizer_config.json", eos_token="<|fin|>"
    )
    assert "eos_token_id is 99999, outside the vocabulary" in refusal("config.json", eos_token_id=99999)
    (folder / "tokenizer.json").write_text(json.dumps(json.loads(files["tokenizer.json"]) | {"pre_tokenizer": other}))
    AutoTokenizer.from_pretrained(folder).save_pretrained(folder)  # the remedy
    require_tokens(folder)


def test_finetune_asks_no_process_for_a_rehearsal_that_has_passed_and_one_for_any_other(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process would import torch's friends, compose the config again and only then say so."""
    folder, started = write("llama", tmp_path / "model"), []
    write_chats(tmp_path / "chats.jsonl")
    home, remembered = tmp_path / "home", list[str]()

    def passes(command: list[str], libraries: object = None) -> int:
        """The step's own rehearsal, of which only the training is left out."""
        started.append(command)
        module, words = module_and_words(command)
        return import_module(module).main(words)

    def keep(home: Path, digest: str, said: str) -> None:
        remembered.append(digest)
        remember(home, digest, said)

    monkeypatch.setattr(rehearsal, "_train", lambda *_: SimpleNamespace(path=tmp_path))
    monkeypatch.setattr(cut, "load_again", lambda folder: None)
    monkeypatch.setattr(rehearsal, "remember", keep)
    monkeypatch.setattr("nemotron_app.finetune.plan.run_process", passes)
    asked = ["finetune", str(folder), str(tmp_path / "chats.jsonl"), f"--home={home}", "--dry-run"]
    assert main(asked) == 0 and len(started) == 1
    assert BEFORE not in capsys.readouterr().err
    assert main(asked) == 0 and len(started) == 1
    assert capsys.readouterr().err.count(f"[sft] {BEFORE}") == 1
    assert main([*asked, "optimizer.lr=1e-3"]) == 0 and len(started) == 2
    assert len({*remembered}) == 2
