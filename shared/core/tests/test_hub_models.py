"""Models of the hub as artifacts, with the real `huggingface_hub` against a hub of our own."""

import io
import json
import os
import pickle
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from hub_stand_in import COMMIT, MAY_READ, TOKEN, Hub, HubRequest, Model, serving

from nemotron_shared.artifacts import Artifact, Store
from nemotron_shared.models import folder
from nemotron_shared.models.hub import look_at
from nemotron_shared.models.importing import find, import_folder, import_hub
from nemotron_shared.models.references import HubModel, parse_outside
from nemotron_shared.system.errors import UserError

library = pytest.importorskip("huggingface_hub")
constants = pytest.importorskip("huggingface_hub.constants")

TINY = HubModel("local/tiny")
NEXT = "f" * 40


TYPE_OF_A_NUMBER = (50).to_bytes(8, "little") + b'{"a":{"dtype":5,"shape":[0],"data_offsets":[0,0]}}'


def weights(count: int = 4, fill: bytes = b"\0", shape: list[int] | None = None) -> bytes:
    """A safetensors file with one tensor."""
    entry = {"a.experts.0.w": {"dtype": "F32", "shape": shape or [count], "data_offsets": [0, 4 * count]}}
    header = json.dumps(entry).encode()
    return len(header).to_bytes(8, "little") + header + fill * (4 * count)


def files(**others: bytes) -> dict[str, bytes]:
    """A model as small as can be; `others` by name, with a double underscore for a dot."""
    named = {name.replace("__", "."): content for name, content in others.items()}
    config = b'{"model_type": "nemotron_h", "auto_map": {"AutoConfig": "modeling.Config"}}'
    model = {"config.json": config, "tokenizer.json": b"{}", "modeling.py": b"raise SystemExit", "a.gguf": b"x"}
    return model | {"model.safetensors": weights()} | named


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """A hub that this process takes for the hub, with one model."""
    with serving(Hub({}, models={"local/tiny": files()})) as served:
        monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{served.server_port}")
        template = f"http://127.0.0.1:{served.server_port}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(folder, "known_types", lambda: frozenset({"nemotron_h"}))
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        look_at.cache_clear()
        yield served


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "home")


def bring_in(store: Store, model: HubModel = TINY, *, weights: bool = True, trusted: bool = False) -> Artifact:
    """What the first use of a reference makes."""
    found = find(store, model, weights=weights, trusted=trusted)
    return found.bring_in() if found.bring_in else (found.artifact or pytest.fail("nothing was found"))


def refusal(call: Callable[[], object]) -> str:
    with pytest.raises(UserError) as caught:
        call()
    return str(caught.value)


def test_a_model_is_pinned_checked_and_not_copied(hub: Hub, store: Store, tmp_path: Path) -> None:
    looked = find(store, TINY, weights=True, trusted=False)
    assert "76 bytes" not in looked.shown
    assert hub.served == len(b"{}") + len(weights()), "of the weights no more than the header, which is all of it here"
    assert not store.names(), "a look publishes nothing"
    artifact = bring_in(store)
    assert artifact.reference == "hf-local--tiny:v1"
    assert sorted(artifact.manifest.files) == ["config.json", "model.safetensors", "tokenizer.json"]
    assert looked.artifact is not None
    assert artifact.manifest.digest == looked.artifact.manifest.digest, "known before the download"
    assert artifact.manifest.metadata == {
        "repository": "local/tiny", "revision": "main", "commit": COMMIT, "weights": {"total": 4, "experts": 4},
    }  # fmt: skip
    assert [source.uri for source in artifact.manifest.sources] == [f"hf://local/tiny@{COMMIT}"]
    assert store.verify(artifact) == []
    blob = tmp_path / "hub" / "models--local--tiny" / "snapshots" / COMMIT / "model.safetensors"
    assert (artifact.path / "model.safetensors").samefile(blob), "one file with two names"
    assert {(artifact.path / name).stat().st_mode & 0o777 for name in artifact.manifest.files} == {0o644}
    shutil.rmtree(tmp_path / "hub")
    assert store.verify(artifact) == [], "the hub's cache may go"


def test_a_pinned_model_needs_no_hub_until_it_is_imported_anew(hub: Hub, store: Store) -> None:
    bring_in(store)
    hub.models["local/tiny"] = Model({NEXT: files(model__safetensors=weights(8)), COMMIT: files()}, {"main": NEXT})
    asked = len(hub.asked)
    found = find(store, TINY, weights=True, trusted=False)
    assert found.artifact is not None
    assert (found.artifact.reference, found.bring_in, len(hub.asked)) == ("hf-local--tiny:v1", None, asked)
    assert found.note is not None
    assert found.note.endswith("commit 0123456789ab; for a newer one: nemotron model import hf://local/tiny")
    by_commit = find(store, HubModel("local/tiny", COMMIT[:10]), weights=True, trusted=False)
    assert by_commit.artifact is not None
    assert by_commit.artifact.reference == "hf-local--tiny:v1"
    look_at.cache_clear()
    assert import_hub(store, look_at(TINY, weights=True, trusted=False)).reference == "hf-local--tiny:v2"
    newer = find(store, TINY, weights=True, trusted=False).artifact
    assert newer is not None
    assert newer.manifest.metadata["commit"] == NEXT
    again = import_hub(store, look_at(TINY, weights=True, trusted=False))
    assert again.reference == "hf-local--tiny:v2", "nothing has changed"


def test_a_tokenizer_comes_alone_and_its_model_from_the_same_commit(hub: Hub, store: Store) -> None:
    tokenizer = bring_in(store, weights=False)
    assert (tokenizer.reference, list(tokenizer.manifest.files)) == ("hf-local--tiny-tokenizer:v1", ["tokenizer.json"])
    assert tokenizer.manifest.type == "TokenizerArtifact"
    assert hub.served == len(b"{}")
    hub.models["local/tiny"] = Model({NEXT: files(), COMMIT: files()}, {"main": NEXT})
    assert bring_in(store).manifest.metadata["commit"] == COMMIT
    found = find(store, TINY, weights=False, trusted=False)
    assert found.artifact is not None
    assert found.artifact.reference == "hf-local--tiny:v1", "the model has it, too"


def test_a_download_goes_on_where_it_was_cut_off(
    hub: Hub, store: Store, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    monkeypatch.setattr("time.sleep", lambda seconds: None)  # between the library's own attempts
    monkeypatch.setattr("nemotron_shared.models.hub.RANGE", 100_000)
    large = weights(1_000_000)
    hub.models["local/tiny"] = Model({COMMIT: files(model__safetensors=large)})
    hub.give_up_after = 1_000_000
    message = refusal(lambda: bring_in(store))
    assert "hf://local/tiny: the hub at http://127.0.0.1" in message
    assert "run the same command again to resume the download" in message
    said = capsys.readouterr().err
    assert "neverinafile" not in said + message
    assert not store.names()
    hub.give_up_after, hub.served = None, 0
    look_at.cache_clear()  # as in a new process
    assert store.verify(bring_in(store)) == []
    assert 0 < hub.served <= len(large) - 600_000, "what was there was not fetched again"


def test_what_is_not_what_the_hub_promises_is_not_imported(hub: Hub, store: Store, capsys) -> None:
    found = find(store, TINY, weights=True, trusted=False)
    hub.spoiled = {"model.safetensors"}
    assert found.bring_in is not None
    message = refusal(found.bring_in)
    assert "model.safetensors: the content has another digest than the hub promises" in message
    assert not store.names()
    hub.spoiled = set()
    assert store.verify(found.bring_in()) == [], "the damaged file in the hub's cache was fetched again"
    assert "not what the hub promises; fetching again" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("hf://local/none", "hf://local/none: no such model on the hub, or a private one\n  check the name"),
        ("hf://local/tiny@v9", "hf://local/tiny@v9: no revision 'v9'\n  name a branch, tag or commit"),
        ("hf://local/gated", "hf://local/gated: a gated model\n  ask for access on its page, then set HF_TOKEN"),
        ("hf://local/gguf", "holds no config.json of a model; it has a.gguf"),
        ("hf://local/empty", "holds no weights in safetensors or PyTorch's format"),
        ("hf://local/part", "model.safetensors.index.json names files that are not there: b.safetensors"),
        ("hf://local/new", "its model_type 'new' is not known to the installed transformers, and it brings no code"),
        ("hf://local/code", "its model_type 'own' needs the Python files that come with the model\n  read them"),
        ("hf://local/far", "its code is in another repository (other/code), whose revision is not pinned"),
        ("hf://tiny", "hf://tiny: not a model's address\n  write hf://organisation/name"),
        ("hf:/local/tiny", "hf:/local/tiny: not a model's address\n  write hf://local/tiny"),
    ],
)
def test_what_cannot_be_used_is_an_error_before_the_weights_come(
    hub: Hub, store: Store, address: str, message: str
) -> None:
    index = b'{"weight_map": {"a": "a.safetensors", "b": "b.safetensors"}}'
    own = b'{"model_type": "own", "auto_map": {"AutoModelForCausalLM": "modeling.Own"}}'
    small = b'{"model_type": "nemotron_h"}'
    shapes = {
        "gated": files(),
        "gguf": {"a.gguf": b"x"},
        "empty": {"config.json": small},
        "part": {"config.json": small, "model.safetensors.index.json": index, "a.safetensors": weights()},
        "new": files(config__json=b'{"model_type": "new"}'),
        "code": files(config__json=own),
        "far": files(config__json=own.replace(b"modeling.Own", b"other/code--modeling.Own")),
    }
    hub.models |= {f"local/{name}": Model({COMMIT: content}) for name, content in shapes.items()}
    hub.gated = ("local/gated",)

    def look() -> None:
        wanted = parse_outside(address)
        assert wanted is not None
        find(store, wanted, weights=True, trusted=False)

    said = refusal(look)
    assert message in said
    assert TOKEN not in said
    assert not [line for line in hub.asked if "safetensors" in line and "index" not in line]


def test_a_gated_model_comes_with_a_token_that_may_read_it(hub: Hub, store: Store, monkeypatch) -> None:
    hub.gated = ("local/tiny",)
    monkeypatch.setenv("HF_TOKEN", MAY_READ)
    assert bring_in(store).reference == "hf-local--tiny:v1"


def test_code_comes_along_only_where_it_is_needed_and_trusted(hub: Hub, store: Store) -> None:
    own = b'{"model_type": "own", "auto_map": {"AutoModelForCausalLM": "modeling.Own"}}'
    hub.models["local/tiny"] = Model({COMMIT: files(config__json=own)})
    assert "modeling.py" in bring_in(store, trusted=True).manifest.files


def test_pickles_are_taken_where_there_is_nothing_else_and_announced(hub: Hub, store: Store, capsys) -> None:
    saved = io.BytesIO()
    with zipfile.ZipFile(saved, "w") as archive:
        archive.writestr("archive/data.pkl", b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\n.")
    content = files(pytorch_model__bin=saved.getvalue())
    assert "pytorch_model.bin" not in bring_in(store).manifest.files
    del content["model.safetensors"]
    hub.models["local/old"] = Model({COMMIT: content})
    artifact = bring_in(store, HubModel("local/old"))
    assert "pytorch_model.bin" in artifact.manifest.files
    assert artifact.manifest.metadata["weights"] is None
    assert "its weights are pickles: they are read weights-only" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"model__safetensors": weights()[:-4]}, "its header speaks of"),
        ({"model__safetensors": b"x" * 4}, "cut off within its header, or no safetensors file"),
        *(({"model__safetensors": weights(shape=shape)}, "model.safetensors: a.experts.0.w: its shape has more than 64")
          for shape in ([10**4000] * 4000, [1] * 64 + [4], [2**32, 2**31], [2**63, 0])),
        ({"model__safetensors__index__json": b'{"weight_map": {"b": "model.safetensors"}}'},
         "its weights lack b in model.safetensors"),
        ({"model__safetensors__index__json": b'{"weight_map": ["model.safetensors"]}'}, "not of the form"),
        ({"model__safetensors__index__json": b'{"weight_map": {"a": "../a.safetensors"}}'}, "not of the form"),
        ({"model__safetensors__index__json": b'{"weight_map": {"a": "a.safetensors"}}', "a__safetensors": weights()},
         "holds model.safetensors, and model.safetensors.index.json names a.safetensors: two sets"),
    ],
)  # fmt: skip
def test_broken_weights_are_refused_before_they_are_fetched(hub: Hub, store: Store, content, message: str) -> None:
    hub.models["local/tiny"] = Model({COMMIT: files(**content)})
    assert message in refusal(lambda: find(store, TINY, weights=True, trusted=False))
    assert store.names() == []


def test_what_is_no_state_dict_is_not_imported(hub: Hub, store: Store) -> None:
    content = files(pytorch_model__bin=pickle.dumps({"a": 1}))
    del content["model.safetensors"]
    hub.models["local/tiny"] = Model({COMMIT: content})
    assert "pytorch_model.bin: no state dict of PyTorch, or cut off" in refusal(lambda: bring_in(store))


def test_offline_the_hubs_own_cache_is_asked(hub: Hub, store: Store, monkeypatch, capsys) -> None:
    message = "not in the local cache, and offline mode is set\n  download it once, 'hf download local/tiny'"
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert message in refusal(lambda: bring_in(store))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    library.snapshot_download("local/tiny")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    asked = len(hub.asked)
    assert bring_in(store).manifest.metadata["commit"] == COMMIT
    assert len(hub.asked) == asked
    assert "offline: commit 0123456789ab from the hub's local cache" in capsys.readouterr().err


def test_too_little_room_is_known_before_the_download(hub: Hub, store: Store, monkeypatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=90))
    found = find(store, TINY, weights=True, trusted=False)
    assert "to download to" in str(found.no_room)
    assert "set HF_HOME" in str(found.no_room)


PROXIED = """
import sys
import zipfile
from pathlib import Path
from nemotron_shared.artifacts import Store
from nemotron_shared.models.hub import look_at
from nemotron_shared.models.importing import import_hub
from nemotron_shared.models.references import HubModel
print(import_hub(Store(Path(sys.argv[1])), look_at(HubModel("local/tiny"), weights=False, trusted=False)).reference)
"""


@pytest.mark.parametrize("there", [True, False])
def test_mirrors_and_proxies_are_honoured(tmp_path: Path, there: bool) -> None:
    with serving(Hub({}, models={"local/tiny": files()})) as hub:
        proxy = f"http://me:canary-proxy-word@127.0.0.1:{hub.server_port if there else 9}"
        environment = hub.environment(tmp_path / "cache") | {"HF_ENDPOINT": "http://hub.invalid", "HTTP_PROXY": proxy}
        command = [sys.executable, "-c", PROXIED, str(tmp_path / "home")]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if there:
        assert done.stdout.strip() == "hf-local--tiny-tokenizer:v1", done.stderr
    else:
        assert "hf://local/tiny: the hub at http://hub.invalid does not answer" in done.stderr
        assert "HTTPS_PROXY" in done.stderr
        assert "canary-proxy-word" not in done.stderr.split("UserError")[-1]


def test_references() -> None:
    assert parse_outside("hf://org/Name@refs/pr/1") == HubModel("org/Name", "refs/pr/1")
    assert HubModel("Org/Name_1.5B").name() == "hf-org--name_1.5b"
    assert str(HubModel("org/name", "v2")) == "hf://org/name@v2"
    assert str(parse_outside("megatron:./iter_1")) == "megatron:iter_1"
    assert parse_outside("super3-sft-model:v2") is parse_outside("./megatron") is parse_outside("megatron:v2") is None
    assert len(HubModel(f"org/{'n' * 92}").name("-tokenizer")) == 100


@pytest.mark.parametrize("digest", ["/stolen", "../../../stolen", "0" * 39, None, 5])
@pytest.mark.parametrize("name", ["model.safetensors", "config.json"])
def test_a_digest_that_is_none_names_no_file(
    hub: Hub, store: Store, monkeypatch, tmp_path: Path, name: str, digest: object
) -> None:
    said = str(tmp_path / "stolen") if str(digest).startswith("/") else digest
    large = {"lfs": {"oid": said, "sha256": said, "size": 9, "pointerSize": 9}}
    lies = {"oid": said, "blobId": said} | (large if name == "model.safetensors" else {})
    honest = HubRequest._entry
    monkeypatch.setattr(
        HubRequest, "_entry", lambda self, file, *more: honest(self, file, *more) | (lies if file == name else {})
    )
    assert f"{name}: the hub returned an invalid digest" in refusal(lambda: bring_in(store))
    assert not list(tmp_path.rglob("*stolen*"))
    assert not store.names()


@pytest.mark.parametrize(
    ("header", "file"),
    [("ETag", "config.json"), ("X-Linked-ETag", "model.safetensors"), ("X-Repo-Commit", "config.json")],
)
def test_an_answer_whose_headers_lead_out_of_the_cache_is_refused(
    hub: Hub, store: Store, monkeypatch, tmp_path: Path, header: str, file: str
) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    honest = HubRequest._send

    def send(self, content: bytes, status: int, headers: dict[str, str]) -> None:
        lies = {header: f'"{victim}"'} if "/resolve/" in self.path and self.path.endswith(file) else {}
        honest(self, content, status, headers | lies)

    monkeypatch.setattr(HubRequest, "_send", send)
    assert f"an answer with {header}" in refusal(lambda: bring_in(store))
    assert [path.name for path in tmp_path.glob("*victim*")] == ["victim"]
    assert victim.read_text() == "precious"


@pytest.mark.parametrize(("added", "said"), [(9, "ends after"), (-(10**9), "returned an invalid size")])
def test_a_size_that_is_not_the_contents_ends_the_download(
    hub: Hub, store: Store, monkeypatch, added: int, said: str
) -> None:
    honest = HubRequest._entry

    def entry(self, file: str, *more) -> dict:
        found = honest(self, file, *more)
        if file == "pytorch_model.bin":
            found["size"] += added
            found["lfs"]["size"] += added
        return found

    content = files(pytorch_model__bin=b"pickled")
    del content["model.safetensors"]  # whose header would tell it sooner
    hub.models["local/tiny"] = Model({COMMIT: content})
    monkeypatch.setattr(HubRequest, "_entry", entry)
    assert said in refusal(lambda: bring_in(store))


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"config__json": b"[1]"}, "not a mapping of a model's settings"),
        ({"config__json": b'{"model_type": ["x"], "auto_map": {"a": "b"}}'}, "its model_type is not text"),
        ({"config__json": b'{"a":' + b"[" * 100_000}, "not valid JSON"),
        ({"config__json": b'{"a": ' + b"9" * 5000 + b"}"}, "not valid JSON"),
        ({"model__safetensors__index__json": b"[1]"}, "not of the form"),
        ({"model__safetensors__index__json": b'{"weight_map": ["a"]}'}, "not of the form"),
        ({"model__safetensors__index__json": b'{"weight_map": {"a": 5}}'}, "not of the form"),
        ({"model__safetensors__index__json": b'{"weight_map": {"a": "../x.safetensors"}}'}, "not of the form"),
        ({"model__safetensors__index__json": b'{"weight_map": {"a": "config.json"}}'}, "not of the form"),
        ({"model__safetensors": b"\xff" * 200}, "cut off within its header"),
        ({"model__safetensors": b"\x09" + b"\0" * 7 + b'{"a":"x"}'}, "its header cannot be read"),
        ({"model__safetensors": TYPE_OF_A_NUMBER}, "its header cannot be read"),
    ],
)
def test_small_files_that_are_not_what_they_should_be_are_one_clear_error(
    hub: Hub, store: Store, changed: dict[str, bytes], said: str
) -> None:
    hub.models["local/tiny"] = Model({COMMIT: files(**changed)})
    assert said in refusal(lambda: bring_in(store))


@pytest.mark.parametrize("name", ["../..", "local/..", "./.", "local/tin\u00fd", f"local/{'t' * 300}"])
def test_a_name_that_no_repository_has_is_one_clear_error(hub: Hub, store: Store, name: str) -> None:
    assert "not an address of the hub" in refusal(lambda: bring_in(store, HubModel(name)))


MORE = {"additional_chat_templates/tool_use.jinja": b"{{ tools }}"}


def test_further_chat_templates_come_along(
    hub: Hub, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the hub, from its cache without a network, and from a folder; nothing else below the top does."""
    others = {"additional_chat_templates/other.txt": b"x", "original/tokenizer.json": b"{}"}
    hub.models["local/tiny"] = Model({COMMIT: files() | MORE | others})
    made = bring_in(store)
    wanted = ["additional_chat_templates/tool_use.jinja", "config.json", "model.safetensors", "tokenizer.json"]
    assert sorted(made.manifest.files) == wanted
    assert (made.path / wanted[0]).read_bytes() == MORE[wanted[0]] and not store.verify(made)

    library.snapshot_download("local/tiny")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    look_at.cache_clear()
    assert sorted(bring_in(Store(tmp_path / "offline")).manifest.files) == wanted

    folder = tmp_path / "folder"
    for name, content in (files() | MORE | others).items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    found = import_folder(store, folder, name=None, trusted=False).manifest.files
    assert sorted(found) == sorted([*wanted, "modeling.py"])
    shutil.rmtree(folder / "additional_chat_templates")
    (tmp_path / "private").mkdir()
    (tmp_path / "private" / "mine.jinja").write_text("x")
    (folder / "additional_chat_templates").symlink_to(tmp_path / "private")
    assert "a link out of the folder" in refusal(lambda: import_folder(store, folder, name=None, trusted=False))


def test_what_is_no_file_of_a_folder_is_not_left_out_without_a_word(store: Store, tmp_path: Path) -> None:
    folder = tmp_path / "folder\nname"
    folder.mkdir()
    for name, content in files().items():
        (folder / name).write_bytes(content)
    import_folder(store, folder, name=None, trusted=False)
    for name, make in {"tokenizer.json": os.mkfifo, "LICENSE": os.mkfifo, "config.json": os.mkdir}.items():
        (folder / name).unlink(missing_ok=True)
        make(folder / name)
        assert "not a regular file" in refusal(lambda: import_folder(store, folder, name=None, trusted=False))
        assert "folder\\nname" in refusal(lambda: import_folder(store, folder, name=None, trusted=False))
        if name != "config.json":
            (folder / name).unlink()
            (folder / name).write_text("{}")
