"""The model that a command without a name takes, and those that nothing can use."""

import json
import os
import zipfile
from pathlib import Path

import pytest

from nemotron_shared.artifacts import Producer, Store
from nemotron_shared.models.finding import find_model, newest_model
from nemotron_shared.models.folder import config_of, require_loadable
from nemotron_shared.models.importing import import_folder
from nemotron_shared.models.references import spelled_out
from nemotron_shared.models.weights import require_whole
from nemotron_shared.system.errors import UserError

NOBODY = Producer("sft", "train", "0", "0", "", "", None, "python -m stages.sft.train", {})


def publish(store: Store, name: str, moment: str, monkeypatch: pytest.MonkeyPatch, type="ModelArtifact") -> None:
    folder = store.home / "work"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    monkeypatch.setattr("nemotron_shared.artifacts.store.utc", lambda _: moment)
    store.publish(folder, name=name, type=type, fingerprint=name, producer=NOBODY)


def test_the_newest_model_is_the_one_made_last_whatever_its_name(tmp_path: Path, monkeypatch) -> None:
    store = Store(tmp_path / "home")
    with pytest.raises(UserError, match="no model in"):
        newest_model(store)
    publish(store, "super3-rl-model", "2026-01-02T00:00:00+00:00", monkeypatch)
    publish(store, "super3-sft-model", "2026-01-03T00:00:00+00:00", monkeypatch)
    publish(store, "super3-sft-model", "2026-01-01T00:00:00+00:00", monkeypatch)
    publish(store, "super3-sft-data", "2026-01-04T00:00:00+00:00", monkeypatch, "SFTDataArtifact")
    assert find_model(store, None, family="super3", trusted=False).reference == "super3-sft-model:v1"
    assert find_model(store, "sft", family="super3", trusted=True).reference == "super3-sft-model:v2"
    assert find_model(store, "sft", family="super3", trusted=True).trusted
    (store.root / "super3-sft-model" / "v1" / "manifest.json").write_text("{")
    assert newest_model(store).reference == "super3-rl-model:v1"


def test_a_stages_name_means_the_only_model_that_it_made_from_somebodys(tmp_path: Path, monkeypatch, capsys) -> None:
    store = Store(tmp_path / "home")
    publish(store, "nano3-sft-model", "2026-01-01T00:00:00+00:00", monkeypatch)
    with pytest.raises(UserError, match="no artifact 'super3-sft-model'"):
        find_model(store, "sft", family="super3", trusted=False)
    publish(store, "qwen3-sft-model", "2026-01-02T00:00:00+00:00", monkeypatch)
    publish(store, "qwen3-sft-model", "2026-01-03T00:00:00+00:00", monkeypatch)
    assert find_model(store, "sft", family="super3", trusted=False).reference == "qwen3-sft-model:v2"
    assert "sft: taken as qwen3-sft-model, the only one of that stage here" in capsys.readouterr().err
    assert find_model(store, "sft:v1", family="super3", trusted=False).reference == "qwen3-sft-model:v1"
    publish(store, "llama-sft-model", "2026-01-04T00:00:00+00:00", monkeypatch)
    with pytest.raises(UserError, match="no artifact 'super3-sft-model'"):
        find_model(store, "sft", family="super3", trusted=False)
    publish(store, "super3-sft-model", "2026-01-05T00:00:00+00:00", monkeypatch)
    assert find_model(store, "sft", family="super3", trusted=False).reference == "super3-sft-model:v1"


def test_a_reward_model_is_never_the_newest_and_is_imported_as_what_it_is(tmp_path: Path, monkeypatch) -> None:
    store = Store(tmp_path / "home")
    publish(store, "super3-sft-model", "2026-01-02T00:00:00+00:00", monkeypatch)
    publish(store, "super3-reward-model", "2026-01-03T00:00:00+00:00", monkeypatch, "RewardModelArtifact")
    assert newest_model(store).reference == "super3-sft-model:v1"
    with pytest.raises(UserError, match="super3-reward-model:v1 is a reward model"):
        find_model(store, "super3-reward-model", family="super3", trusted=False)
    folder = tmp_path / "scores"
    folder.mkdir()
    (folder / "config.json").write_text('{"model_type": "llama", "architectures": ["LlamaForSequenceClassification"]}')
    header = b'{"score.weight": {"dtype": "F32", "shape": [1, 1], "data_offsets": [0, 4]}}'
    (folder / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(4))
    with pytest.raises(UserError, match="scores is a reward model"):
        find_model(store, str(folder), family="super3", trusted=False)
    assert import_folder(store, folder, name="theirs", trusted=False).manifest.type == "RewardModelArtifact"


def test_what_is_damaged_or_holds_no_weights_is_refused(tmp_path: Path, monkeypatch) -> None:
    store = Store(tmp_path / "home")
    publish(store, "super3-sft-model", "2026-01-02T00:00:00+00:00", monkeypatch)
    (store.root / "super3-sft-model" / "v1" / "config.json").write_text('{"model_type": "other"}')
    with pytest.raises(UserError, match="damaged"):
        find_model(store, "sft", family="super3", trusted=False)
    folder = tmp_path / "empty"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    with pytest.raises(UserError, match="holds no weights"):
        find_model(store, str(folder), family="super3", trusted=False)


def test_weights_that_are_not_what_their_header_says_are_not_hashed(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("nemotron_shared.artifacts.verified.file_digest", lambda path: pytest.fail(f"hashed {path}"))
    (tmp_path / "model.safetensors").write_bytes(b"\2\0\0\0\0\0\0\0{}")
    (tmp_path / "config.json").write_text("{}")
    os.truncate(tmp_path / "model.safetensors", 1 << 40)
    with pytest.raises(UserError, match="1099511627776 bytes, and its header speaks of 10"):
        find_model(Store(tmp_path / "home"), str(tmp_path), family="super3", trusted=False)


def test_a_config_that_is_a_link_to_elsewhere_is_not_read(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(b"")
    (tmp_path / "secret").write_text("not JSON")
    (folder / "config.json").symlink_to("../secret")
    store = Store(tmp_path / "home")
    with pytest.raises(UserError, match=r"config\.json: a link out of the folder"):
        find_model(store, str(folder), family="super3", trusted=False)
    with pytest.raises(UserError, match=r"config\.json: a link out of the folder"):
        import_folder(store, folder, name=None, trusted=False)


def test_a_template_of_any_size_is_refused_with_its_model(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(b"")
    (folder / "config.json").write_text("{}")
    (folder / "chat_template.jinja").touch()
    os.truncate(folder / "chat_template.jinja", 3 * 2**30)
    store = Store(tmp_path / "home")
    with pytest.raises(UserError, match=r"chat_template\.jinja: 3,221,225,472 bytes"):
        import_folder(store, folder, name=None, trusted=False)
    with pytest.raises(UserError, match=r"chat_template\.jinja: 3,221,225,472 bytes"):
        find_model(store, str(folder), family="super3", trusted=False)


def test_the_code_of_a_part_counts_at_any_depth() -> None:
    part = {"model_type": "llama", "auto_map": {"AutoModel": "own.Model"}}
    for config in ({"model_type": "fuyu", "text_config": part}, {"model_type": "fuyu", "a": [{"b": {"c": [part]}}]}):
        with pytest.raises(UserError, match=r"m: a part of it \(auto_map\) needs the Python files"):
            require_loadable("m", config, trusted=False)
        require_loadable("m", config, trusted=True)
    part["auto_map"] = {"AutoTokenizer": ["far/code--own.Model", None]}
    with pytest.raises(UserError, match=r"another repository \(far/code\)"):
        require_loadable("m", {"model_type": "fuyu", "text_config": part}, trusted=True)
    require_loadable("m", {"model_type": "llama", "auto_map": {"AutoModel": "own.Model"}}, trusted=False)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"attn_implementation": "org/kernel"}, "attn_implementation 'org/kernel' is code of another repository"),
        ({"_attn_implementation": {"": "org/kernel"}}, "_attn_implementation 'org/kernel' is code"),
        ({"a": [{"b": {"experts_implementation": "org/kernel"}}]}, "experts_implementation 'org/kernel' is code"),
        ({"attribute_map": {"x": "_attn_implementation"}, "x": "org/kernel"}, "attribute_map is not a model setting"),
    ],
)
def test_kernels_of_a_repository_are_refused(tmp_path: Path, fields: dict, said: str) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama"} | fields))
    with pytest.raises(UserError, match=rf"config\.json: {said}"):
        config_of(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "llama", "attn_implementation": "flash_attention_2"}')
    assert config_of(tmp_path)["model_type"] == "llama"


@pytest.mark.parametrize(
    ("compression", "said"),
    [(zipfile.ZIP_DEFLATED, "compressed, as PyTorch saves nothing"), (zipfile.ZIP_STORED, "a/data.pkl is larger than")],
)
def test_a_pickle_that_would_fill_the_memory_is_not_read(tmp_path: Path, monkeypatch, compression, said: str) -> None:
    monkeypatch.setattr("nemotron_shared.models.weights.LARGEST_PICKLE", 1000)
    with zipfile.ZipFile(tmp_path / "pytorch_model.bin", "w", compression) as archive:
        archive.writestr("a/data.pkl", bytes(1001))
    with pytest.raises(UserError, match=f"m: pytorch_model.bin: .*{said}"):
        require_whole("m", tmp_path, {})


def test_a_tensor_in_two_files_is_refused_whatever_the_index_says(tmp_path: Path) -> None:
    empty = {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}
    header = json.dumps({"a": empty, "b": empty}).encode()
    for name in ("x.safetensors", "y.safetensors"):
        (tmp_path / name).write_bytes(len(header).to_bytes(8, "little") + header)
    index = {"weight_map": {"a": "x.safetensors", "b": "y.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(UserError, match=r"m: a is in x\.safetensors and in y\.safetensors"):
        require_whole("m", tmp_path, {})


def test_a_tensor_that_the_index_leaves_out_is_refused(tmp_path: Path) -> None:
    names = ["a", "b", "c", "d", "e"]
    header = json.dumps({name: {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]} for name in names}).encode()
    (tmp_path / "x.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": "x.safetensors"}}))
    with pytest.raises(UserError) as caught:
        require_whole("m", tmp_path, {})
    left_out = "b in x.safetensors, c in x.safetensors, d in x.safetensors and 1 more"
    assert caught.value.message == f"m: {index.name} does not name {left_out}"
    index.write_text(json.dumps({"weight_map": dict.fromkeys(names, "x.safetensors")}))
    require_whole("m", tmp_path, {})


@pytest.mark.parametrize("beside", [[], ["config.json", "model.safetensors"]])
def test_an_adapter_is_no_model(tmp_path: Path, beside: list[str]) -> None:
    folder = tmp_path / "adapter"
    folder.mkdir()
    for name in ("adapter_config.json", "adapter_model.safetensors", *beside):
        (folder / name).write_text("{}")
    with pytest.raises(UserError, match=r"adapter_config\.json makes it an adapter") as caught:
        find_model(Store(tmp_path / "home"), str(folder), family="super3", trusted=False)
    assert str(folder) in caught.value.message and "merge" in (caught.value.remedy or "")


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("models/tiny", "./models/tiny"),
        ("model", "./model"),
        ("org/name", "hf://org/name"),
        ("org/Name@v2", "hf://org/Name@v2"),
        ("super3/sft", "super3/sft"),
        ("sft/data:v2", "sft/data:v2"),
        ("mine/one", "mine/one"),  # mine-one in the store
        ("models/other", "models/other"),  # a folder in `models` is meant, and an error says that there is none
        ("org/name/more", "org/name/more"),
        ("org/..", "org/.."),
        ("sft", "sft"),
        ("hf://org/name", "hf://org/name"),
        ("megatron:./iter_1", "megatron:./iter_1"),
        ("./models/tiny", "./models/tiny"),
        ("~/model", "~/model"),
        ("art://sft", "art://sft"),
    ],
)
def test_shorter_forms_of_guides_are_spelled_out(tmp_path: Path, monkeypatch, text: str, meant: str) -> None:
    store = Store(tmp_path / "home")
    publish(store, "mine-one", "2026-01-02T00:00:00+00:00", monkeypatch)
    for folder in ("models/tiny", "model", "sft"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "config.json").write_text("{}")
    monkeypatch.chdir(tmp_path)
    found, note = spelled_out(text, store, "super3")
    assert found == meant and (note is None) == (not meant.startswith("hf://") or text == meant)
