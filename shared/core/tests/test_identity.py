"""What names a result, and what may differ between two attempts at it."""

from dataclasses import asdict
from types import SimpleNamespace
from typing import Any

from pydantic import Field

from nemotron_shared.config.overrides import flat
from nemotron_shared.config.schema import Extra, How, Section
from nemotron_shared.engine.spec import Task
from nemotron_shared.step.records import changes, differences, promises_bytes, what_and_how, why_not_promised
from nemotron_shared.tracking.segments import Segment, continued


class Inner(Section):
    depth: int
    workers: How[int | None] = Field(ge=1)


class Whole(Section):
    inner: Inner
    rows: list[int]
    threads: How[int]
    extra: Extra[float] = 0.0


VALUES = {"inner": {"depth": 3, "workers": 2}, "rows": [1, 2], "threads": 1}


def test_settings_are_told_apart_by_their_marks() -> None:
    what, how = what_and_how(VALUES, Whole.model_validate(VALUES))
    assert dict(flat(what)) == {"inner.depth": 3, "rows": [1, 2]}
    assert dict(flat(how)) == {"inner.workers": 2, "threads": 1}


def test_an_extra_that_is_off_is_no_part_of_a_name() -> None:
    names = []
    for extra in (0.0, 0.5):
        values = VALUES | {"extra": extra}
        what, _ = what_and_how(values, Whole.model_validate(values))
        names.append("extra" in what)
    assert names == [False, True]


def task(what: dict[str, Any], how: dict[str, Any] | None = None, modules: dict[str, str] | None = None) -> Task[Any]:
    nothing: Any = None
    return Task(nothing, {}, nothing, nothing, what=what, how=how or {}, modules=modules or {})


def test_how_and_code_leave_the_result_its_name() -> None:
    one = task({"optimizer.lr": 1.0}, {"threads": 1}, {"a": "1"})
    other = task({"optimizer.lr": 1.0}, {"threads": 2}, {"a": "2"})
    assert one.result == other.result
    assert one.fingerprint != other.fingerprint
    assert one.fingerprint == task(dict(one.what), {"threads": 9}, dict(one.modules)).fingerprint


def test_a_longer_training_is_of_the_same_series() -> None:
    short = task({"train.train_iters": 3, "optimizer.lr": 1.0})
    long = task({"train.train_iters": 6, "optimizer.lr": 1.0})
    other = task({"train.train_iters": 6, "optimizer.lr": 2.0})
    assert short.series == long.series != other.series
    assert short.result != long.result


def test_differences_name_the_key_and_both_values() -> None:
    assert differences({"a": 1, "b": 2}, {"b": 3, "c": "x" * 50}) == [
        "a 1 -> (none)", "b 2 -> 3", f"c (none) -> {'x' * 37}...",
    ]  # fmt: skip


def test_differences_cut_digests_and_name_a_setting_without_its_content() -> None:
    one, other = "a1" * 32, "b2" * 32
    before = {"content of model.architecture": one, "content of blend": one, "model.architecture": "tiny"}
    now = {"content of model.architecture": other, "content of blend": other, "model.architecture": "large"}
    assert differences(before | {"input model": None}, now | {"input model": other}) == [
        "content of blend a1a1a1a1a1a1 -> b2b2b2b2b2b2", "input model None -> b2b2b2b2b2b2",
        "model.architecture tiny -> large",
    ]  # fmt: skip


def segment(**values: object) -> Segment:
    usual = {"began": "", "from_step": None, "how": {"threads": 1}, "modules": {"a": "1"}, "machine": {"processes": 1}}
    return Segment(**(usual | values))


def test_changes_between_two_attempts() -> None:
    now = segment(how={"threads": 2}, modules={"a": "2"}, machine={"processes": 4})
    assert changes(segment(), now) == ["threads 1 -> 2", "code of a", "processes 1 -> 4"]
    assert changes(segment(), segment(began="later")) == []


def test_bytes_are_promised_where_nothing_changed_between_attempts() -> None:
    def promised(*segments: Segment) -> bool:
        return promises_bytes(SimpleNamespace(segments=[asdict(one) for one in segments], metadata={}))

    again = segment(began="later", from_step=4, machine={"processes": 1, "folder": "/elsewhere"})
    assert promised(segment()) and promised(segment(machine={"processes": 1}), again)
    assert not promised(segment(), segment(how={"threads": 2})) and not promised()
    assert not promised(segment(), segment(modules={"a": "2"})) and not promised(segment(), segment(machine={}))
    told: Any = SimpleNamespace(segments=[asdict(segment())], metadata={"replayable": False, "generator": "vLLM 1"})
    assert why_not_promised(told) == "replayable: no, drawn by vLLM 1"


def test_segments_before_a_start_from_nothing_do_not_count() -> None:
    first, second = segment(began="1"), segment(began="2")
    assert [one.began for one in continued([first, second], 40)] == ["1", "2"]
    assert [one.began for one in continued([first, second], 0)] == ["2"]
