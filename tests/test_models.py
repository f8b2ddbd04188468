"""Models from outside: by the hub's name, from a folder, from a checkpoint of Megatron; their code, and our secrets."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import pytest
from hub_stand_in import SIGNATURE, TOKEN, Hub, serving
from support import SHORT, last_json, nemotron, write_model

from nemotron_app.main import main
from nemotron_data.tokenizers.tiny import save_tokenizer
from nemotron_shared.artifacts import Store
from nemotron_shared.artifacts.verified import command_that_made

OWN = {"model_type": "own_kind", "auto_map": {"AutoModelForCausalLM": "own.Model"}}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model folder that can be looked at, below the working folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NEMOTRON_HOME", str(tmp_path / "home"))
    machine = {"python": "3.12", "processes": 1, "gpus": None, "memory_gb": 40, "free_disk_gb": 9, "packages": {}}
    (tmp_path / "machine.yaml").write_text(json.dumps(machine))
    (tmp_path / "model").mkdir()
    write_model(tmp_path / "model")
    save_tokenizer(tmp_path / "model")
    return tmp_path / "model"


def own_kind(folder: Path) -> None:
    """Make it a model that needs the code beside it."""
    (folder / "config.json").write_text(json.dumps(json.loads((folder / "config.json").read_text()) | OWN))
    (folder / "own.py").write_text("raise SystemExit('it ran')\n")


def dry_run(run, *words: str, ok: bool = True) -> subprocess.CompletedProcess[str]:
    config = () if "-c" in words else ("-c", "tiny")
    return run(*nemotron("super3", "sft", *config, "--dry-run", "--json", *words), ok=ok)


def look(run, *words: str) -> subprocess.CompletedProcess[str]:
    """A dry run for another machine, which rehearses nothing: there are no real weights here."""
    return dry_run(run, "--machine", "machine.yaml", *words, ok=False)


def of_the_reference(done: subprocess.CompletedProcess[str]) -> list[str]:
    """Problems with the name of a model, not with the machine."""
    return [one for one in last_json(done)["problems"] if one.startswith("run.model")]


def test_trust_remote_code_is_answered_with_a_line_where_no_code_is_needed(run, folder: Path) -> None:
    text = "defaults: [tiny, _self_]\nmodel:\n  trust_remote_code: true\n"
    (folder.parent / "theirs.yaml").write_text(text)
    for words in (("-c", "theirs.yaml"), ("model.trust_remote_code=true",), ("+engine.trust_remote_code=true",)):
        done = look(run, f"run.model={folder}", *words)
        (note,) = [one for one in last_json(done)["notes"] if "trust_remote_code" in one]
        assert "trust_remote_code is not needed: transformers knows the model; no code of it runs" in note
        assert not of_the_reference(done) and note not in done.stderr
        assert words[0] != "-c" or note.startswith("theirs.yaml:3: model.trust_remote_code")


def test_code_that_is_needed_is_trusted_on_the_command_line_and_nowhere_else(run, folder: Path) -> None:
    own_kind(folder)
    for words in ((), ("+model.trust_remote_code=true",)):
        (problem,) = last_json(dry_run(run, f"run.model={folder}", *words, ok=False))["problems"]
        assert problem == (
            f"run.model: {folder}: its model_type 'own_kind' needs the Python files that come with the model\n"
            "  read them, then add --trust-code to the command"
        )
    assert last_json(dry_run(run, f"run.model={folder}", "--trust-code"))["problems"] == []
    refused = run(*nemotron("super3", "sft", "-c", "tiny", "++run.trust_code=true", "--dry-run"), ok=False)
    assert "trust_code'" in refused.stdout + refused.stderr


OFFLINE = {"HF_HUB_OFFLINE": "1"}
NANO = "NVIDIA-Nemotron-3-Nano-30B-A3B-BF16"


def one_problem(run, *words: str) -> tuple[str, list[str]]:
    """The only problem of a dry run, and its notes."""
    command = ("super3", "sft", "-c", "tiny", "--dry-run", "--json", *words)
    done = run(*nemotron(*command), ok=False, env=OFFLINE)
    shown = last_json(done)
    (problem,) = shown["problems"]
    return problem, shown["notes"]


@pytest.mark.parametrize("name", [f"nvidia/{NANO}", "local/tiny", "local/tiny@v2"])
def test_the_bare_name_of_a_hub_model_is_its_address(run, folder: Path, name: str) -> None:
    problem, notes = one_problem(run, f"run.model={name}")
    assert f"run.model: {name}: no folder or artifact here has that name: taken as hf://{name}" in "".join(notes)
    assert problem.startswith(f"run.model: hf://{name}: not in the local cache, and offline mode is set")


@pytest.mark.parametrize("place", ["models/full-precision/" + NANO, "models/tiny", "model"])
def test_a_folder_is_taken_by_the_path_that_guides_write(run, folder: Path, capsys, place: str) -> None:
    path = folder.parent / place
    path.parent.mkdir(parents=True, exist_ok=True)
    folder.rename(path)
    (folder.parent / "theirs.yaml").write_text(f"defaults: [tiny, _self_]\nrun:\n  model: {place}\n")
    for words in ((f"run.model={place}",), ("-c", "theirs.yaml")):
        done = look(run, *words)
        assert (of_the_reference(done), last_json(done)["inputs"]["model"]) == ([], str(path))
    assert main(["model", "import", place, "--as", "mine"]) == 0
    assert capsys.readouterr().out == "mine:v1\n"


def test_an_artifact_keeps_the_name_that_a_folder_without_a_slash_has_too(run, folder: Path) -> None:
    assert main(["model", "import", "./model", "--as", "model"]) == 0
    for name, found in {"model": "model:v1", "./model": str(folder)}.items():
        assert last_json(look(run, f"run.model={name}"))["inputs"]["model"] == found


@pytest.mark.parametrize(
    ("name", "said", "remedy"),
    [
        (f"models/nano/{NANO}", "(models holds: mine), and no artifact can have that name", "hf://ORGANISATION/NAME"),
        ("models/other", "(models holds: mine), and no artifact 'models-other' in", "hf://models/other"),
        ("blank/other", "(blank is empty), and no artifact 'blank-other' in", "hf://blank/other"),
        ("zoo/llama3:v2", "and no artifact 'zoo-llama3' in", "hf://ORGANISATION/NAME"),
        ("zoo/a/b", "and no artifact 'zoo-a-b' in", "hf://ORGANISATION/NAME"),
    ],
)
def test_a_name_with_slashes_that_nothing_has_says_all_that_it_could_be(
    run, folder: Path, name: str, said: str, remedy: str
) -> None:
    (folder.parent / "models" / "mine").mkdir(parents=True)
    (folder.parent / "blank").mkdir()
    problem, _ = one_problem(run, f"run.model={name}")
    first, last = problem.split("\n")
    assert first.startswith(f"run.model: '{name}': no such folder") and said in first
    assert "give the path of a folder that exists" in last and last.endswith(remedy)


@pytest.mark.parametrize("role", ["model", "data"])
def test_a_given_folder_that_is_not_there_is_missed_and_nothing_stands_for_it(run, folder: Path, role: str) -> None:
    (problem,) = last_json(dry_run(run, f"run.{role}=./nowhere", ok=False))["problems"]
    assert problem == f"run.{role}: {folder.parent / 'nowhere'}: no such folder\n  give a folder that is there"


def test_a_folder_is_imported_under_a_name(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["model", "import", "./model", "--as", "mine"]) == 0
    assert main(["model", "import", "./model", "--as", "mine"]) == 0
    said = capsys.readouterr()
    assert said.out.splitlines() == ["mine:v1"] * 2
    assert "[model] unchanged: mine:v1" in said.err
    assert main(["super3", "model", "import", "sft", "./model"]) == 0
    assert capsys.readouterr().out == "super3-sft-model:v1\n"
    artifact = Store.open().resolve("mine")
    assert artifact.manifest.type == "ModelArtifact"
    assert [source.uri for source in artifact.manifest.sources] == [str(folder)]
    assert command_that_made(artifact.manifest) == "nemotron model import model --as mine"
    with (folder / "model.safetensors").open("ab") as own:
        own.write(b"more")
    assert Store.open().verify(artifact) == [], "what is done to the user's file later does not reach the artifact"
    with (folder / "model.safetensors").open("rb+") as own:
        own.truncate(own.seek(-4, 2))
    own_kind(folder)
    assert main(["model", "import", "./model"]) == 2
    assert "then add --trust-code" in capsys.readouterr().err
    assert main(["model", "import", "./model", "--trust-code"]) == 0
    assert "own.py" in Store.open().resolve("model").manifest.files


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ("[1]", "config.json: not a mapping of a model's settings"),
        ('{"model_type": ["a"]}', "model_type is not text"),
        ('{"a": ' + "[" * 100_000, "not valid JSON"),
        ('{"a": ' + "9" * 5000 + "}", "not valid JSON"),
    ],
)
def test_a_config_that_is_none_is_one_clear_error(folder: Path, capsys, config: str, said: str) -> None:
    (folder / "config.json").write_text(config)
    assert main(["model", "import", "./model"]) == 2
    assert said in capsys.readouterr().err


def test_a_name_that_belongs_to_another_type_is_refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["model", "import", "./model", "--as", "super3-sft-data"]) == 2
    assert "'super3-sft-data' is a name for a SFTDataArtifact, and this is a ModelArtifact" in capsys.readouterr().err
    (folder.parent / "words").mkdir()
    save_tokenizer(folder.parent / "words")
    assert main(["model", "import", "./words", "--as", "mine"]) == 0
    assert main(["model", "import", "./model", "--as", "mine"]) == 2
    assert "'mine' is a name for a TokenizerArtifact" in capsys.readouterr().err
    assert main(["model", "import", "./model", "--as", ""]) == 2
    assert "'' is not an artifact name" in capsys.readouterr().err


def test_an_input_of_another_type_is_one_clear_error(run, folder: Path) -> None:
    assert main(["model", "import", "./model", "--as", "mine"]) == 0
    problems = last_json(dry_run(run, "run.data=mine", "run.model=./model", ok=False))["problems"]
    assert [line.partition("\n")[0] for line in problems] == [
        "run.data: mine:v1 is of type ModelArtifact, and SFTDataArtifact is needed here"
    ]
    (problem,) = last_json(dry_run(run, "run.data=./model", ok=False))["problems"]
    assert problem.startswith("run.data: ./model: a model's folder\n")


def cut(folder: Path) -> None:
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-2])


def lacking(folder: Path) -> None:
    """The second of two layers of a kind has less than the first."""
    config = json.loads((folder / "config.json").read_text()) | {"layers_block_type": ["moe", "moe"]}
    (folder / "config.json").write_text(json.dumps(config))
    names = ["backbone.layers.0.a", "backbone.layers.0.b", "backbone.layers.1.a"]
    header = json.dumps({name: {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]} for name in names}).encode()
    (folder / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)


def pickled(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(b"\x80\x04}\x94.")


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (cut, "and its header speaks of"),
        (lacking, "its weights lack backbone.layers.1.b"),
        (pickled, "pytorch_model.bin: no state dict of PyTorch, or cut off"),
    ],
)
def test_broken_weights_are_refused_by_an_import_and_a_dry_run(run, folder: Path, capsys, damage, said: str) -> None:
    damage(folder)
    assert main(["model", "import", "./model"]) == 2
    assert said in capsys.readouterr().err
    (problem,) = last_json(dry_run(run, "run.model=./model", ok=False))["problems"]
    assert said in problem


def test_links_within_a_hub_cache_are_followed_and_others_refused(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cache = folder.parent / "hub" / "models--local--tiny"
    snapshot = cache / "snapshots" / "0123"
    snapshot.mkdir(parents=True)
    (cache / "blobs").mkdir()
    for file in folder.iterdir():
        (cache / "blobs" / file.name).write_bytes(file.read_bytes())
        (snapshot / file.name).symlink_to(f"../../blobs/{file.name}")
    assert main(["model", "import", str(snapshot), "--as", "cached"]) == 0
    cached = Store.open().resolve("cached").path
    assert not [path for path in cached.iterdir() if path.is_symlink()]
    assert (cached / "model.safetensors").samefile(cache / "blobs" / "model.safetensors"), "not copied"
    (folder / "generation_config.json").symlink_to("/etc/hostname")
    capsys.readouterr()
    assert main(["model", "import", "./model"]) == 2
    assert "generation_config.json: a link out of the folder, to /etc/hostname" in capsys.readouterr().err


def megatron_environment(place: Path, converted: Path) -> None:
    """An environment whose Python puts the folder `converted` where the result of a conversion belongs."""
    site = place / "lib" / "python3.12" / "site-packages"
    for package, version in {"megatron-core": "0.19.2", "megatron-bridge": "0.6.2"}.items():
        about = site / f"{package.replace('-', '_')}-{version}.dist-info"
        about.mkdir(parents=True)
        (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n")
    (place / "bin").mkdir()
    python = place / "bin" / "python"
    python.write_text(f'#!/bin/sh\n[ "$2" = nemotron_engines.megatron_bridge.import_checkpoint ] && '
                      f'cp {converted}/* "$4"\n')  # fmt: skip
    python.chmod(0o755)


def test_a_megatron_checkpoint_needs_its_engine_and_becomes_an_artifact(
    run, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = folder.parent / "iter_0000010"
    checkpoint.mkdir()
    engines = folder.parent / "engines"
    words = ("super3", "sft", "-c", "tiny", "run.model=megatron:./iter_0000010", "--dry-run", "--json")

    def problems() -> list[str]:
        done = run(*nemotron(*words), ok=False, env={**os.environ, "NEMOTRON_ENGINES": str(engines)})
        return last_json(done)["problems"]

    (problem,) = problems()
    assert "no checkpoint of Megatron" in problem
    (checkpoint / "run_config.yaml").write_text("model: {}\n")
    (problem,) = problems()
    assert problem.endswith("is needed\n  make its environment: nemotron engine install megatron")
    megatron_environment(engines / "megatron", folder)
    assert problems() == []
    environment = {**os.environ, "NEMOTRON_ENGINES": str(engines)}
    for _ in range(2):
        done = run(*nemotron("model", "import", "megatron:./iter_0000010"), env=environment)
        assert done.stdout == "megatron-iter_0000010:v1\n"
    assert "unchanged" in done.stderr


SLOW = """#!/bin/sh
echo begun >> {here}/conversions
while [ ! -e {here}/go ]; do sleep 0.1; done
cp {converted}/* "$4"
"""
ELSEWHERE = """
import pathlib, sys
from nemotron_app.main import main
from nemotron_shared.system import lock
machine, *words = sys.argv[1:]
if machine:  # a folder that machines share, through which no lock of a kernel reaches
    pathlib.Path("mounts").write_text("root / nfs4 rw 0 0\\n")
    lock.MOUNTS, lock.HEARTBEAT_SECONDS = pathlib.Path("mounts"), 0.2
    lock._machine, lock._take = lambda: machine, lambda *_: None
sys.exit(main(words))
"""


@pytest.mark.parametrize("machines", [("", ""), ("node1", "node2")], ids=["one machine", "two machines"])
def test_two_that_want_one_conversion_make_it_once(folder: Path, machines: tuple[str, str]) -> None:
    here = folder.parent
    (here / "iter_0000010").mkdir()
    (here / "iter_0000010" / "run_config.yaml").write_text("model: {}\n")
    megatron_environment(here / "engines" / "megatron", folder)
    (here / "engines" / "megatron" / "bin" / "python").write_text(SLOW.format(here=here, converted=folder))
    environment = {**os.environ, "NEMOTRON_ENGINES": str(here / "engines"), "NEMOTRON_HOME": str(here / "store")}

    def start(machine: str) -> subprocess.Popen[str]:
        words = [sys.executable, "-c", ELSEWHERE, machine, "model", "import", "megatron:./iter_0000010"]
        return subprocess.Popen(
            words, cwd=here, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    with start(machines[0]) as first:
        while not (here / "conversions").exists() and first.poll() is None:
            time.sleep(0.1)
        with start(machines[1]) as second:
            assert second.stderr is not None
            assert any("another process brings it in: waiting" in line for line in second.stderr)
            (here / "go").touch()
            done = first.communicate(), second.communicate()
    assert [out for out, _ in done] == ["megatron-iter_0000010:v1\n"] * 2, done
    assert "unchanged: megatron-iter_0000010:v1" in done[1][1]
    assert (here / "conversions").read_text() == "begun\n"


def without_hub(environment: Mapping[str, str]) -> dict[str, str]:
    return {**environment, "HTTP_PROXY": "http://127.0.0.1:9", "HTTPS_PROXY": "http://127.0.0.1:9"}


@pytest.mark.slow
def test_a_model_of_the_hub_trains_and_again_without_the_hub(tmp_path: Path) -> None:
    """The way from a name to a model, and not one secret on it."""
    from nemotron_engines.modeling.build import save_random_model
    from nemotron_shared.config.schema import ModelSection

    source = tmp_path / "source"
    save_tokenizer(source)
    save_random_model(ModelSection(architecture="super3_tiny", overrides={}), source, 7, source)
    (tmp_path / "work").mkdir()
    canaries = {"CANARY_ENTITY": "canary-entity-4711", "WANDB_API_KEY": "canarykey0123456789", "HF_TOKEN": TOKEN}
    words = (
        *("super3", "sft", "-c", "tiny", "run.model=hf://local/tiny", "data_prep.tokenizer.model=hf://local/tiny"),
        *("logger.wandb_entity=${oc.env:CANARY_ENTITY}", "run.threads=1", *SHORT["sft"]),
    )

    def command(*more: str, environment: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
        # new processes: the copies of the fork server have read the hub's variables before
        work, program = tmp_path / "work", nemotron(*more)
        done = subprocess.run(program, cwd=work, env=dict(environment), capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done

    with serving(Hub({}, models={"local/tiny": {file.name: file.read_bytes() for file in source.iterdir()}})) as hub:
        environment = hub.environment(tmp_path / "cache") | canaries
        looked = command(*words, "--dry-run", environment=environment)
        assert "model: hf://local/tiny (commit 0123456789ab: would be imported first, 1.2 MB to download)" in (
            looked.stdout
        )
        assert "none: this could run" in looked.stdout
        assert not (tmp_path / "work" / ".nemotron" / "artifacts").exists()
        assert hub.served < 200_000, "no weights for a look"
        first = command(*words, environment=environment)
        assert "[hf://local/tiny] downloading 1.2 MB of commit 0123456789ab" in first.stderr
    again = command(*words, "--force", environment=without_hub(environment))
    assert "is hf-local--tiny:v1, commit 0123456789ab; for a newer one: nemotron model import hf://local/tiny" in (
        again.stderr
    )
    store = Store(tmp_path / "work" / ".nemotron")
    model = store.resolve("super3-sft-model:v2")
    assert {parent.role: parent.reference for parent in model.manifest.parents}["model"] == "hf-local--tiny:v1"
    data = store.resolve("super3-sft-data")
    assert {parent.role: parent.reference for parent in data.manifest.parents} == {
        "tokenizer": "hf-local--tiny-tokenizer:v1"
    }
    (config,) = store.home.glob("runs/super3-sft-model-*/config.yaml")
    assert "wandb_entity: ${oc.env:CANARY_ENTITY}" in config.read_text(), "it can be used again"
    secrets = [*canaries.values(), SIGNATURE.partition("=")[2]]
    for done in (looked, first, again):
        assert not [secret for secret in secrets if secret in done.stdout + done.stderr]
    for file in filter(Path.is_file, store.home.rglob("*")):
        content = file.read_bytes()
        assert not [secret for secret in secrets if secret.encode() in content], file


@pytest.mark.parametrize(
    ("fields", "refused"),
    [
        ({"model_type": "zamba2", "layers_block_type": ["mamba", "hybrid"] * 2}, True),
        ({"model_type": "zamba2", "layers_block_type": ["mamba", "hybrid"] * 2, "num_mem_blocks": 2}, False),
        ({"model_type": "zamba"}, True),
        ({"model_type": "llama"}, False),
    ],
)
def test_shards_of_layers_that_share_weights_are_refused_ahead(
    run, folder: Path, fields: dict[str, object], refused: bool
) -> None:
    (folder / "config.json").write_text(json.dumps(json.loads((folder / "config.json").read_text()) | fields))
    machine = json.loads((folder.parent / "machine.yaml").read_text())
    for processes, strategy in ((2, "fsdp2"), (2, "ddp"), (1, "fsdp2")):
        (folder.parent / "machine.yaml").write_text(json.dumps(machine | {"processes": processes}))
        problems = last_json(look(run, "run.model=./model", f"engine.strategy={strategy}"))["problems"]
        told = [one for one in problems if "share their weights, and FSDP2 of torch 2.13 shards no such layers" in one]
        assert len(told) == (refused and (processes, strategy) == (2, "fsdp2")), problems
