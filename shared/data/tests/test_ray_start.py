"""Ray on a machine that is too busy for it: one error with a remedy, and our handler of SIGTERM stays."""

import signal
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from nemotron_data.prep import ray_executor
from nemotron_shared.errors import UserError

SETTING: Any = SimpleNamespace(workers=2, announce=lambda line: None)


def pretended(monkeypatch: pytest.MonkeyPatch, init: Any) -> Any:
    monkeypatch.setattr(ray_executor, "_was_started", lambda: False)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    ended: list[bool] = []
    exceptions = SimpleNamespace(RayError=type("RayError", (Exception,), {}))
    return SimpleNamespace(
        init=init, is_initialized=lambda: False, shutdown=lambda: ended.append(True), exceptions=exceptions, ended=ended
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
        ray_executor._connect(ray, SETTING)
    assert "data_prep.executor=local" in str(caught.value)
    assert ray.ended, "what did start was left behind"


def test_a_fault_of_another_kind_keeps_its_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    def init(**settings: Any) -> None:
        raise TypeError("unexpected keyword")

    with pytest.raises(TypeError):
        ray_executor._connect(pretended(monkeypatch, init), SETTING)


def test_sigterm_stays_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    def init(**settings: Any) -> None:
        signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(number))  # as Ray's does

    before = signal.getsignal(signal.SIGTERM)
    assert not ray_executor._connect(pretended(monkeypatch, init), SETTING)
    assert signal.getsignal(signal.SIGTERM) is before
