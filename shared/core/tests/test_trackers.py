"""What a training logs stands in W&B and MLflow too, and neither can end it."""

import json
import struct
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from nemotron_shared.artifacts import Artifact, Producer, Store
from nemotron_shared.config.training import LoggerSection
from nemotron_shared.system.errors import UserError
from nemotron_shared.system.stop import Stopped
from nemotron_shared.tracking.completions import Completion
from nemotron_shared.tracking.trackers import Ending, Tracker, Trackers, can_log, tracked

NAME = "super3-sft-model-0123456789ab"
BLOCK, PATIENCE = 32_768, 120.0
SETTINGS = {"train.train_iters": 3, "optimizer.lr": 0.001, "run.env": {"MY_API_KEY": "abcdefghijkl"}}


def section(**keys: Any) -> LoggerSection:
    off = {"wandb_project": None, "wandb_entity": None, "wandb_name": None, "mlflow_tracking_uri": None}
    off |= {"mlflow_experiment": None}
    return LoggerSection(log_interval=1, tensorboard=False, log_dir=None, **(off | keys))


@pytest.fixture
def made(tmp_path: Path) -> Artifact:
    store, folder = Store.open(str(tmp_path / "home")), tmp_path / "made"
    folder.mkdir()
    (folder / "metrics.jsonl").write_text('{"step": 3, "loss": 1.0}\n')
    (folder / "model.safetensors").write_bytes(b"x" * 1000)
    producer = Producer("sft", "train", "0", "0", "c" * 64, "d" * 64, None, "python -m stages.sft.train", {})
    return store.publish(
        folder,
        name="super3-sft-model",
        type="ModelArtifact",
        fingerprint="f",
        producer=producer,
        metrics={"loss": 1.0, "sums": {"accuracy": 0.5}, "engine": "none"},
    )


@pytest.fixture
def inputs(tmp_path: Path, made: Artifact) -> list[Artifact]:
    """An artifact of the store, and a folder from outside."""
    (tmp_path / "base").mkdir()
    (tmp_path / "base" / "config.json").write_text("{}")
    return [made, Artifact.external(tmp_path / "base")]


def records(file: Path) -> Iterator[bytes]:
    """The records of a file of W&B's, which has the form of a LevelDB log: blocks of 32 KiB, pieces in them."""
    data, at, whole = file.read_bytes(), 7, b""
    while at + 7 <= len(data):
        left = BLOCK - at % BLOCK
        if left < 7:  # too little for a head: the block's end
            at += left
            continue
        _, size, kind = struct.unpack_from("<IHB", data, at)
        whole += data[at + 7 : at + 7 + size]
        at += 7 + size
        if kind in {1, 4}:  # whole, or the last piece
            yield whole
            whole = b""


def recorded_offline(folder: Path) -> list[Any]:
    """The records of the offline run of W&B below a folder, from its own file, once its writer has ended it."""
    from wandb.proto import wandb_internal_pb2

    (file,) = folder.glob("wandb/offline-run-*/run-*.wandb")
    end = time.monotonic() + PATIENCE
    while True:
        found = [wandb_internal_pb2.Record.FromString(record) for record in records(file)]
        if any(record.WhichOneof("record_type") == "exit" for record in found):
            return found
        assert time.monotonic() < end, "W&B does not end its file"
        time.sleep(0.1)


def of_kind(found: list[Any], kind: str) -> list[Any]:
    return [getattr(record, kind) for record in found if record.WhichOneof("record_type") == kind]


def logged_offline(folder: Path) -> list[dict[str, Any]]:
    """The steps of that run."""
    return [
        {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in record.item}
        for record in of_kind(recorded_offline(folder), "history")
    ]


def lineage_offline(folder: Path) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    """Names and types of the artifacts that the run has made, and of those that it has used."""
    found = of_kind(recorded_offline(folder), "artifact")
    told = [(one.use_after_commit, (one.name, one.type)) for one in found]
    return [name for used, name in told if not used], [name for used, name in told if used]


COMPLETION = Completion(
    step=2, which="best", prompt="2+2?", completion="<think></think>4", expected="4",
    rewards={"strict": 1.0, "own": None}, reward=1.0, advantage=0.5, tokens=2, ended="stopped",
)  # fmt: skip


def work(trackers: Trackers, steps: range, made: Artifact | None) -> None:
    for step in steps:
        trackers.figures(step, {"loss": 4.0 / step, "expert_load/1": 1.5})
    if made is not None:
        trackers.result(made)


def test_wandb_offline_has_every_step(tmp_path: Path, made: Artifact, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    run = tmp_path / "run"
    run.mkdir()
    with tracked(NAME, run, section(wandb_project="mine"), SETTINGS, ()) as trackers:
        work(trackers, range(1, 2), None)
        trackers.completions(2, [COMPLETION])
        work(trackers, range(2, 4), made)
    logged = logged_offline(run)
    assert [(entry["_step"], entry["loss"]) for entry in logged] == [(1, 4.0), (2, 2.0), (3, 4.0 / 3)]
    assert [entry["_step"] for entry in logged if "completions/_type" in entry or "completions" in entry] == [2]
    (table,) = run.rglob("*.table.json")
    shown = json.loads(table.read_text())
    assert dict(zip(shown["columns"], shown["data"][0], strict=True)) == {
        "which": "best", "prompt": "2+2?", "completion": "<think></think>4", "expected": "4", "rewards/strict": 1.0,
        "rewards/own": None, "reward": 1.0, "advantage": 0.5, "tokens": 2, "ended": "stopped",
    }  # fmt: skip
    assert all("abcdefghijkl" not in path.read_bytes().decode("latin-1") for path in run.rglob("*") if path.is_file())


def test_mlflow_has_every_step_and_the_result(tmp_path: Path, made: Artifact) -> None:
    mlflow = pytest.importorskip("mlflow")
    address = f"sqlite:///{tmp_path / 'mlflow.db'}"
    asked = section(mlflow_tracking_uri=address, mlflow_experiment="mine")
    with pytest.raises(Stopped), tracked(NAME, tmp_path, asked, SETTINGS, ()) as trackers:
        work(trackers, range(1, 3), None)
        trackers.completions(2, [COMPLETION])
        raise Stopped("stopped", "again")
    client = mlflow.MlflowClient(tracking_uri=address)
    experiment = client.get_experiment_by_name("mine")
    (first,) = client.search_runs([experiment.experiment_id])
    assert first.info.status == "KILLED"
    with tracked(NAME, tmp_path, asked, SETTINGS, ()) as trackers:  # the same run goes on
        work(trackers, range(3, 5), made)
    (run,) = client.search_runs([experiment.experiment_id])
    assert (run.info.run_id, run.info.status) == (first.info.run_id, "FINISHED")
    history = client.get_metric_history(run.info.run_id, "loss")
    assert [(entry.step, entry.value) for entry in history] == [(step, 4.0 / step) for step in range(1, 5)]
    assert run.data.params["optimizer.lr"] == "0.001"
    assert "abcdefghijkl" not in str(run.data.params)
    assert run.data.tags["nemotron.reference"] == "super3-sft-model:v1"
    assert run.data.tags["nemotron.digest"] == made.manifest.digest
    assert not (Path.cwd() / "mlruns").exists() and (tmp_path / "mlflow-artifacts").is_dir()
    files = {entry.path for entry in client.list_artifacts(run.info.run_id, "super3-sft-model-v1")}
    assert files == {"super3-sft-model-v1/manifest.json", "super3-sft-model-v1/metrics.jsonl"}
    (shown,) = client.list_artifacts(run.info.run_id, "completions")
    kept = json.loads(Path(client.download_artifacts(run.info.run_id, shown.path, str(tmp_path))).read_text())
    assert kept == {"step": 2, "completions": [COMPLETION.plain()]} and shown.path == "completions/step-000002.json"


class Failing:
    """A tracker whose server goes away at step 2."""

    name = "Failing"

    def __init__(self) -> None:
        self.steps: list[int] = []

    def figures(self, step: int, values: Mapping[str, float]) -> None:
        if step == 2:
            raise ConnectionError("no route to host\nand more")
        self.steps.append(step)

    def completions(self, step: int, completions: Sequence[Completion]) -> None:
        raise AssertionError("none are kept")

    def result(self, artifact: Artifact, inputs: Sequence[Artifact]) -> None:
        raise AssertionError("it was left out")

    def end(self, ending: Ending) -> None:
        raise AssertionError("it was left out")


class Steady(Failing):
    def figures(self, step: int, values: Mapping[str, float]) -> None:
        self.steps.append(step)

    def result(self, artifact: Artifact, inputs: Sequence[Artifact]) -> None:
        self.made = artifact.reference

    def end(self, ending: Ending) -> None:
        self.ending = ending


def test_a_tracker_that_fails_is_left_out_and_the_others_go_on(
    made: Artifact, capsys: pytest.CaptureFixture[str]
) -> None:
    failing, steady = Failing(), Steady()
    both: list[Tracker] = [failing, steady]
    trackers = Trackers("run", both)
    work(trackers, range(1, 4), made)
    trackers.end("finished")
    assert (failing.steps, steady.steps, steady.made, steady.ending) == ([1], [1, 2, 3], made.reference, "finished")
    assert capsys.readouterr().err == "[run] Failing is left out from here on: ConnectionError: no route to host\n"


@pytest.fixture
def nothing_there() -> Iterator[str]:
    """An address of this machine at which nobody listens, as long as this test holds the port."""
    import socket

    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{held.getsockname()[1]}"


def test_a_server_that_is_not_there_is_one_error_at_the_start(
    tmp_path: Path, nothing_there: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    asked = section(mlflow_tracking_uri=nothing_there)
    with (
        pytest.raises(UserError, match=r"logger\.mlflow_tracking_uri: cannot log there") as error,
        tracked(NAME, tmp_path, asked, SETTINGS, ()),
    ):
        raise AssertionError("it must not begin")
    assert "logger.mlflow_tracking_uri=null does without" in str(error.value)


@pytest.mark.parametrize(
    ("variables", "login", "allowed"),
    [
        ({}, "", False),
        ({"WANDB_API_KEY": "k"}, "", True),
        ({"WANDB_MODE": "offline"}, "", True),
        ({"WANDB_MODE": "online"}, "", False),
        ({}, "machine api.wandb.ai login user password k", True),
        ({}, "machine elsewhere login user password k", False),
        ({"WANDB_BASE_URL": "https://elsewhere/"}, "machine elsewhere login user password k", True),
    ],
)
def test_wandb_needs_a_key_a_login_or_no_network(
    tmp_path: Path, variables: dict[str, str], login: str, allowed: bool
) -> None:
    (tmp_path / "netrc").write_text(login)
    own = {"NETRC": str(tmp_path / "netrc"), "WANDB_CONFIG_DIR": str(tmp_path), "WANDB_DIR": str(tmp_path)}
    assert can_log(own | variables) is allowed
    assert can_log(own | variables, files=False) is (allowed and not login)


def test_what_the_library_logs_to_by_itself_is_not_logged_to_twice(tmp_path: Path) -> None:
    with tracked(NAME, tmp_path, section(wandb_project="mine"), SETTINGS, ("wandb",)) as trackers:
        trackers.figures(1, {"loss": 1.0})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("itself", [(), ("wandb",)], ids=["from here", "by the library"])
def test_wandb_has_the_result_and_what_it_was_made_from(
    tmp_path: Path, made: Artifact, inputs: list[Artifact], itself: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    run = tmp_path / "run"
    run.mkdir()
    with tracked(NAME, run, section(wandb_project="mine", wandb_name="of mine"), SETTINGS, itself) as trackers:
        trackers.figures(1, {"loss": 1.0})
        trackers.result(made, inputs)
    found = recorded_offline(run)
    (about,) = of_kind(found, "run")
    assert (about.run_id, about.display_name) == (NAME, "of mine")
    assert len(of_kind(found, "history")) == (0 if itself else 1)
    summary = {item.key: item.value_json for record in of_kind(found, "summary") for item in record.update}
    assert (summary["loss"], summary["sums/accuracy"]) == ("1.0", "0.5") and "engine" not in summary
    assert lineage_offline(run) == (
        [("super3-sft-model", "ModelArtifact")],
        [("super3-sft-model", "ModelArtifact"), ("external-base", "ModelArtifact")],
    )
    result, again, outside = of_kind(found, "artifact")
    assert result.digest == again.digest, "the same content, by which W&B knows that they are one"
    assert {entry.path for entry in result.manifest.contents} == {"manifest.json", "metrics.jsonl"}
    assert {entry.path for entry in outside.manifest.contents} == {"config.json", "digest.txt"}


def test_the_run_that_a_library_has_open_gets_the_result_and_stays_open(
    tmp_path: Path, made: Artifact, monkeypatch: pytest.MonkeyPatch
) -> None:
    wandb = pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    theirs = wandb.init(project="theirs", dir=tmp_path, settings=wandb.Settings(console="off", silent=True))
    with tracked(NAME, tmp_path / "none", section(wandb_project="mine"), SETTINGS, ("wandb",)) as trackers:
        trackers.result(made)
    assert wandb.run is theirs
    theirs.finish()
    assert lineage_offline(tmp_path) == ([("super3-sft-model", "ModelArtifact")], [])
