"""`nemotron check-sampling` holds where it must, and sees a difference."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from twins import TWINS, twin_folder, twin_model

from nemotron_engines.exact.recompute import Sampler
from nemotron_serving.check_sampling import THEIRS, Comparison, Count, command, table


def comparison_of(tmp_path: Path, family: str = "nano3") -> Comparison:
    from nemotron_engines.exact.scoring import why_not

    model = twin_model(family, tmp_path)
    assert why_not(model) is None
    sampler, found = Sampler(model, seed=3), Comparison("tiny:v1", "float32")
    for way, compared in sampler.sample().ways():
        found.ways.setdefault(way, Count()).add(*compared)
    found.seconds = dict(sampler.seconds)
    return found


@pytest.mark.parametrize("twin", TWINS)
def test_every_way_is_counted_and_none_differs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, twin: str, measure: Callable[[str, float, float], None]
) -> None:
    torch.set_num_threads(1)
    monkeypatch.setattr("nemotron_engines.exact.recompute.LARGEST_BATCH", 12)
    found = comparison_of(tmp_path, twin)
    ours = [count.differing + count.flips for way, count in found.ways.items() if not way.startswith(THEIRS)]
    measure("sampled tokens whose log-probability differs when training computes it", sum(ours), 0)
    assert found.holds, table(found)
    assert len(found.ways) == 7
    assert any(count.differing for way, count in found.ways.items() if way.startswith(THEIRS))
    assert table(found).startswith("tiny:v1, float32: the same bits in every way\n")


def test_a_batch_has_at_most_the_tokens_that_are_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.set_num_threads(1)
    monkeypatch.setattr("nemotron_engines.exact.recompute.Sampler._compare_time", lambda *args: None)
    sampler = Sampler(twin_model("nano3", tmp_path), seed=3)
    for most in (50, 1):
        assert 0 < sum(len(answer.ids) for answer in sampler.sample(most).answers) <= most


def test_one_other_bit_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.set_num_threads(1)
    monkeypatch.setattr("nemotron_engines.exact.recompute.LARGEST_BATCH", 3)
    monkeypatch.setattr("nemotron_engines.exact.recompute.score", _slightly_wrong)
    found = comparison_of(tmp_path)
    assert not found.holds
    assert "NOT the same bits" in table(found)


def _slightly_wrong(*args: object) -> object:
    from nemotron_engines.exact import scoring

    found = scoring.score(*args)  # ty: ignore[invalid-argument-type]
    return found._replace(logps=torch.nextafter(found.logps, torch.tensor(1.0)))


def test_the_command_compares_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    twin_folder("nano3", tmp_path / "model")
    words = [str(tmp_path / "model"), "--tokens", "2", "--home", str(tmp_path / "home")]
    assert command.main(words, standalone_mode=False) == 0
    assert "the same bits in every way" in capsys.readouterr().out
