"""Validation: every fault is said with its origin, key and remedy."""

from typing import Literal

import pytest
from pydantic import Field, model_validator

from nemotron_shared.config.data import SplitSection
from nemotron_shared.config.registry import Registry
from nemotron_shared.config.schema import EngineSection, Section, StageConfig
from nemotron_shared.config.training import TrainSection
from nemotron_shared.config.validate import validate
from nemotron_shared.system.errors import UserError


class Inner(Section):
    lr: float = Field(gt=0)
    steps: int


class Outer(Section):
    train: Inner


class Range(Section):
    low: int
    high: int

    @model_validator(mode="after")
    def in_order(self) -> "Range":
        if self.low > self.high:
            raise ValueError(f"range.low {self.low} is above range.high {self.high}")
        return self


class WithRange(Section):
    range: Range


def message(values: dict, origins: dict | None = None) -> str:
    with pytest.raises(UserError) as caught:
        validate(Outer, values, origins or {})
    return str(caught.value)


def test_good_values_pass() -> None:
    assert validate(Outer, {"train": {"lr": 0.1, "steps": 3}}, {}).train.steps == 3


def test_an_unknown_key_is_named_with_its_neighbour() -> None:
    text = message({"train": {"lr": 0.1, "steps": 3, "stesp": 3}}, {"train.stesp": "mine.yaml:4"})
    assert "mine.yaml:4: unknown key 'train.stesp'" in text
    assert "did you mean 'steps'" in text


def test_a_misspelt_key_comes_before_what_is_missing_without_it() -> None:
    of_file = message({"train": {"stesp": 3}}, {"train.stesp": "mine.yaml:4", "train": "mine.yaml:3"})
    assert [line.split(": ")[1] for line in of_file.splitlines()[::2]] == [
        "unknown key 'train.stesp'", "missing key 'train.lr'", "missing key 'train.steps'"
    ]  # fmt: skip
    assert "set it, or begin the file with 'defaults" in of_file
    assert "begin the file" not in message({"train": {}}, {"train": "command line"}), "there is no file"


def test_an_unknown_key_is_not_answered_with_another_unknown_one() -> None:
    text = message({"train": {"lr": 0.1, "steps": 3, "foo": 1}, "other": {"foo": 2, "learning_rate": 3}})
    assert "unknown key 'train.foo'\n  known here: lr, steps" in text
    assert "other.foo" not in text


def test_a_key_of_another_section_is_named() -> None:
    text = message({"train": {"lr": 0.1, "steps": 3}, "learning_rate": 1})
    assert "unknown key 'learning_rate'\n  did you mean 'train.lr'?" in text


def test_a_key_whose_right_form_is_set_too_is_to_be_removed() -> None:
    values = {"train": {"lr": 0.1, "steps": 3}, "learning_rate": 1}
    assert "remove it: a.yaml sets 'train.lr' as well" in message(
        values, {"train.lr": "a.yaml:1", "learning_rate": "a.yaml:9"}
    )
    assert "did you mean 'train.lr'?" in message(values, {"train.lr": "tiny.yaml:1", "learning_rate": "a.yaml:9"})


def test_a_number_is_no_key_either() -> None:
    assert "unknown key '1'\n  known here: train" in message({"train": {"lr": 0.1, "steps": 3}, "1": 2})


def test_a_missing_key_is_named() -> None:
    assert "missing key 'train.steps'" in message({"train": {"lr": 0.1}}, {"train": "mine.yaml:2"})


def test_a_wrong_type_and_a_wrong_range_are_both_told() -> None:
    text = message({"train": {"lr": -1, "steps": "many"}}, {"train.lr": "a.yaml:1", "train.steps": "command line"})
    assert "a.yaml:1: train.lr" in text
    assert "command line: train.steps" in text
    assert "'many'" in text


@pytest.mark.parametrize(
    ("low", "high", "told"),
    [
        ("default.yaml:3", "default.yaml:4", "default.yaml:3"),
        ("default.yaml:3", "mine.yaml:7", "mine.yaml:7"),
        ("mine.yaml:6", "command line", "command line"),
        ("mine.yaml:6 (theirs.low)", "machine 'far'", "machine 'far'"),
    ],
)
def test_a_fault_of_several_keys_is_told_where_the_user_set_one(low: str, high: str, told: str) -> None:
    origins = {"range": "tiny.yaml:2", "range.low": low, "range.high": high}
    with pytest.raises(UserError) as caught:
        validate(WithRange, {"range": {"low": 2, "high": 1}}, origins)
    assert str(caught.value) == f"{told}: range.low 2 is above range.high 1"


@pytest.mark.parametrize("value", [2**32, -(2**32), "99999999999", 10**30])
def test_no_number_is_endless(value: object) -> None:
    assert "train.steps: needs a number up to 4,294,967,295" in message({"train": {"lr": 0.1, "steps": value}})
    assert validate(Outer, {"train": {"lr": 10**10, "steps": 2**32 - 1}}, {}).train.steps == 2**32 - 1


def test_a_batch_must_be_divisible() -> None:
    fields = {"train_iters": 1, "global_batch_size": 10, "micro_batch_size": 4, "eval_interval": 1, "eval_rows": 1}
    with pytest.raises(UserError, match="not a multiple"):
        validate(TrainSection, fields, {})


def test_split_shares_sum_to_one() -> None:
    with pytest.raises(UserError, match=r"sum to 0\.9"):
        validate(SplitSection, {"train": 0.8, "valid": 0.1, "test": 0.0}, {})


class Small(EngineSection):
    name: Literal["small"]
    device: str


class Sizes(Section):
    tensor: int = Field(ge=1)


class Big(EngineSection):
    name: Literal["big"]
    parallel: Sizes


class SmallEngine:
    settings = Small


class BigEngine:
    settings = Big


class WithEngine(StageConfig):
    engines = Registry("engine", "none", {"small": f"{__name__}:SmallEngine", "big": f"{__name__}:BigEngine"})

    run: Section  # ty: ignore[invalid-assignment]


@pytest.mark.parametrize(
    ("engine", "told"),
    [
        ({"name": "big", "parallel": {"tensr": 2}}, "unknown key 'engine.parallel.tensr'\n  did you mean 'tensor'"),
        ({"name": "big", "parallel": {"tensor": 0}}, "b.yaml:3: engine.parallel.tensor: Input should be"),
        ({"name": "big", "parallel": {"tensor": 1}, "device": "cpu"}, "unknown key 'engine.device'"),
        ({"name": "small"}, "missing key 'engine.device'"),
        ({"name": "smal"}, "engine.name: no engine named 'smal'\n  did you mean 'small'?"),
        ({"name": "huge"}, "engine.name: no engine named 'huge'\n  there are: small, big"),
        ({"device": "cpu"}, "missing key 'engine.name'"),
        ({"name": "big", "parallel": "fast"}, "engine.parallel is a section, and not 'fast'\n  write its keys: "),
        ({"name": "big", "parallel": "fast"}, "engine.parallel={tensor: ...}"),
        (["big"], "engine: Input should be a valid dictionary"),
    ],
)
def test_a_section_is_validated_by_the_class_of_its_engine(engine: object, told: str) -> None:
    with pytest.raises(UserError) as caught:
        validate(WithEngine, {"run": {}, "engine": engine}, {"engine.parallel": "b.yaml:3"})
    assert told in str(caught.value)


def test_the_section_keeps_the_class_and_every_value() -> None:
    config = validate(WithEngine, {"run": {}, "engine": {"name": "small", "device": "cpu"}}, {})
    assert config.engine == Small(name="small", device="cpu")
    assert config.model_dump()["engine"] == {"name": "small", "device": "cpu"}
