"""`nemotron prove sampling` holds where it must, and sees a difference."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from twins import TWINS, twin_folder, twin_model

from nemotron_prove.sampled import Sampler
from nemotron_prove.sampling import HEAD, THEIRS, Count, Proof, command, table


def proof_of(tmp_path: Path, family: str = "nano3") -> Proof:
    from nemotron_engines.exact.scoring import why_not

    model = twin_model(family, tmp_path)
    assert why_not(model) is None
    sampler, proof = Sampler(model, seed=3), Proof("tiny:v1", "float32")
    for way, found in sampler.sample().ways():
        proof.ways.setdefault(way, Count()).add(*found)
    proof.seconds = dict(sampler.seconds)
    return proof


@pytest.mark.parametrize("twin", TWINS)
def test_every_way_is_counted_and_none_differs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, twin: str, measure: Callable[[str, float, float], None]
) -> None:
    torch.set_num_threads(1)
    monkeypatch.setattr("nemotron_prove.sampled.LARGEST_BATCH", 12)
    proof = proof_of(tmp_path, twin)
    ours = [count.differing + count.flips for way, count in proof.ways.items() if not way.startswith(THEIRS)]
    measure("sampled tokens whose log-probability differs when training computes it", sum(ours), 0)
    assert proof.holds, table(proof)
    assert len(proof.ways) == 7
    assert any(count.differing for way, count in proof.ways.items() if way.startswith(THEIRS))
    assert table(proof).startswith("tiny:v1, float32: the same bits in every way\n")


def test_a_batch_has_at_most_the_tokens_that_are_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.set_num_threads(1)
    monkeypatch.setattr("nemotron_prove.sampled.Sampler._compare_time", lambda *args: None)
    sampler = Sampler(twin_model("nano3", tmp_path), seed=3)
    for most in (50, 1):
        assert 0 < sum(len(answer.ids) for answer in sampler.sample(most).answers) <= most


def test_one_other_bit_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.set_num_threads(1)
    monkeypatch.setattr("nemotron_prove.sampled.LARGEST_BATCH", 3)
    monkeypatch.setattr("nemotron_prove.sampled.score", _slightly_wrong)
    proof = proof_of(tmp_path)
    assert not proof.holds
    assert "NOT the same bits" in table(proof)


def _slightly_wrong(*args: object) -> object:
    from nemotron_engines.exact import scoring

    found = scoring.score(*args)  # ty: ignore[invalid-argument-type]
    return found._replace(logps=torch.nextafter(found.logps, torch.tensor(1.0)))


def test_a_proof_is_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "sampling.md"
    monkeypatch.setattr("nemotron_prove.records.FOLDER", tmp_path)
    twin_folder("nano3", tmp_path / "model")
    words = [str(tmp_path / "model"), "--tokens", "2", "--home", str(tmp_path / "home"), "--record"]
    for times in (1, 2):
        assert command.main(words, standalone_mode=False) == 0
        assert page.read_text().count("the same bits in every way") == times
    assert page.read_text().startswith(HEAD)
