"""Ray on a machine that is too busy for it: one error with a remedy, and our handler of SIGTERM stays."""

import signal
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from nemotron_data.prep import executors
from nemotron_shared.errors import UserError

SETTING: Any = SimpleNamespace(workers=2, announce=lambda line: None)


def pretended(monkeypatch: pytest.MonkeyPatch, init: Any) -> Any:
    monkeypatch.setattr(executors, "_was_started", lambda: False)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    ended: list[bool] = []
    exceptions = SimpleNamespace(RayError=type("RayError", (Exception,), {}))
    return SimpleNamespace(
        init=init,
        is_initialized=lambda: False,
        shutdown=lambda: ended.append(True),
        exceptions=exceptions,
        ended=ended,
        job_config=SimpleNamespace(JobConfig=lambda _py_driver_sys_path: _py_driver_sys_path),
        get_runtime_context=lambda: SimpleNamespace(gcs_address="10.77.0.11:6379"),
    )


@pytest.mark.parametrize(
    "error",
    [
        Exception("The current node timed out during startup. This could happen because ..."),
        RuntimeError("Failed to start GCS.  Last 0 lines of error files:\n.Please check ..."),
        TimeoutError("Timed out while waiting for the GCS port file"),
    ],
)
def test_a_start_that_takes_too_long_is_one_error(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def init(**settings: Any) -> None:
        raise error

    ray = pretended(monkeypatch, init)
    with pytest.raises(UserError, match=r"did not start on this machine \(\w+") as caught:
        executors._connect(ray, SETTING)
    assert "data_prep.executor=local" in str(caught.value)
    assert ray.ended, "what did start was left behind"


def test_a_fault_of_another_kind_keeps_its_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    def init(**settings: Any) -> None:
        raise TypeError("unexpected keyword")

    with pytest.raises(TypeError):
        executors._connect(pretended(monkeypatch, init), SETTING)


def test_sigterm_stays_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    def init(**settings: Any) -> None:
        signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(number))  # as Ray's does

    before = signal.getsignal(signal.SIGTERM)
    assert not executors._connect(pretended(monkeypatch, init), SETTING)
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_cluster_that_is_slow_to_answer_is_asked_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked: list[dict[str, Any]] = []

    def init(**settings: Any) -> None:
        asked.append(settings)
        if len(asked) < 3:
            raise Exception("The current node timed out during startup. This could happen because ...")

    ray = pretended(monkeypatch, init)
    monkeypatch.setenv("RAY_ADDRESS", "10.77.0.11:6379")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path / 'code'}:")
    assert executors._connect(ray, SETTING)
    assert [(each["address"], each["job_config"]) for each in asked] == [
        ("10.77.0.11:6379", [str(tmp_path / "code")])
    ] * 3


def test_a_cluster_that_is_not_there_is_one_error(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bool] = []

    def init(**settings: Any) -> None:
        asked.append(True)
        raise ConnectionError("Failed to connect to Ray cluster at 10.77.0.11:6379")

    ray = pretended(monkeypatch, init)
    monkeypatch.setenv("RAY_ADDRESS", "10.77.0.11:6379")
    with pytest.raises(UserError, match=r"no Ray cluster answers \(RAY_ADDRESS=10.77.0.11:6379\)\n") as caught:
        executors._connect(ray, SETTING)
    assert "RAY_AUTH_TOKEN_PATH" in str(caught.value)
    assert len(asked) == 1
