"""What a pipeline does while a training runs, in which order, and until when."""

from types import SimpleNamespace

import pytest

from nemotron_app import ahead
from nemotron_app.ahead import PREPARES, TRAINS, Ahead
from nemotron_shared.runtime.engine import Engine

ORDER = [(stage, verb) for stage in ("pretrain", "sft", "rl", "eval") for verb in (PREPARES, TRAINS)]


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Stages whose data preparation was begun; each has ended when it is looked at."""
    names: list[str] = []

    def begin(self: Ahead, step: tuple[str, str], *, hidden: bool) -> None:
        names.append(step[0])
        self._started[step] = SimpleNamespace(process=SimpleNamespace(poll=lambda: 0))  # ty: ignore[invalid-assignment]

    monkeypatch.setattr(Ahead, "_begin", begin)
    monkeypatch.setattr(ahead, "cores", lambda: 2)
    return names


def test_the_data_of_all_stages_is_prepared_once(begun: list[str]) -> None:
    pipeline = Ahead(ORDER, {}, fresh=True)
    for number in (1, 3):
        pipeline._work_ahead(number, running=lambda: True)
    assert begun == ["sft", "rl", "eval"]


def test_nothing_is_begun_when_the_training_has_ended(begun: list[str]) -> None:
    Ahead(ORDER, {}, fresh=True)._work_ahead(1, running=lambda: False)
    assert not begun


def test_nothing_is_prepared_ahead_where_it_would_keep_the_training_from_its_core(
    begun: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    Ahead(ORDER, {}, fresh=False)._work_ahead(1, running=lambda: True)
    Ahead(ORDER, {}, fresh=True)._work_ahead(0, running=lambda: True)
    monkeypatch.setattr(ahead, "cores", lambda: 1)
    Ahead(ORDER, {}, fresh=True)._work_ahead(1, running=lambda: True)
    assert not begun


def test_what_a_training_needs_is_imported_while_the_one_before_it_runs(
    begun: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever else runs between them, and where one of them has no library here."""
    imported: list[str] = []
    monkeypatch.setattr(ahead.copies, "get_ready", imported.extend)
    pipeline = Ahead(ORDER, {}, fresh=True)
    pipeline._engines = dict.fromkeys([("rl", TRAINS), ("eval", TRAINS)], Engine)
    found = []
    for number in range(1, 6):
        pipeline._work_ahead(number, running=lambda: False)
        found.append(list(imported))
    rl, evaluation = "stages.rl.train", "stages.eval.train"
    assert found == [[], [], [rl], [rl], [rl, evaluation]]
