"""The strict merge, on dataclasses of our own that look like Bridge's."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Literal, Optional

import pytest
import torch

from nemotron_engines.megatron_bridge.translate import apply_overrides, fits
from nemotron_shared.system.errors import UserError


class Backend(Enum):
    flash = 1
    fused = 2


@dataclass
class Adapter(ABC):
    dim: int = 8

    @abstractmethod
    def transform(self) -> None: ...


@dataclass
class Profiling:
    start: int = 0


@dataclass
class Table:
    rows: int
    name: str = "t"


@dataclass
class Model:
    hidden_size: int = 64
    dtype: torch.dtype = torch.float32
    backend: Backend = Backend.flash
    capacity: float | None = None
    modules: Optional[list[str]] = None  # noqa: UP045  (as Bridge writes it)
    kind: Literal["a", "b"] = "a"
    sloppy: int = None  # type: ignore[assignment]
    rotary: int = 10000.0  # type: ignore[assignment]
    unknown_name: "NotDefinedAnywhere | None" = None  # noqa: F821


@dataclass
class Container:
    model: Model = field(default_factory=Model)
    profiling: Profiling | None = None
    table: Table | None = None
    peft: Adapter | None = None
    env_vars: dict[str, str | int] = field(default_factory=lambda: {"A": 1})
    _private: int = 0


def merged(overrides: dict[str, Any]) -> Container:
    container = Container()
    apply_overrides(container, overrides)
    return container


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"modle": {}}, "engine.overrides.modle: Container has no field 'modle'\n  did you mean 'model'?"),
        ({"model": {"hiddn_size": 1}}, "engine.overrides.model.hiddn_size: Model has no field"),
        ({"model": 5}, "engine.overrides.model: Model is a section, not 5"),
        ({"model": {"hidden_size": "64"}}, "engine.overrides.model.hidden_size: '64' is not int"),
        ({"model": {"hidden_size": 6.5}}, "6.5 is not int"),
        ({"model": {"hidden_size": True}}, "True is not int"),
        ({"model": {"hidden_size": None}}, "None is not int"),
        ({"model": {"capacity": "much"}}, "'much' is not float or null"),
        ({"model": {"dtype": "float99"}}, "'float99' is not a torch dtype"),
        ({"model": {"dtype": "nn"}}, "'nn' is not a torch dtype"),
        ({"model": {"backend": "fuse"}}, "no Backend 'fuse'"),
        ({"model": {"modules": "moe"}}, "'moe' is not List|'moe' is not list"),
        ({"model": {"modules": [1]}}, r"\[1\] is not"),
        ({"model": {"kind": "c"}}, "'c' is not"),
        ({"model": {"unknown_name": 3}}, "3 is not"),
        ({"model": {"_target_": "os.system"}}, "Model has no field '_target_'"),
        ({"_private": 3}, "Container has no field '_private'"),
        ({"env_vars": 3}, "this is a mapping, not 3"),
        ({"env_vars": {"B": [1]}}, "is not"),
        ({"peft": {"dim": 4}}, "engine.overrides.peft: this section is off"),
        ({"profiling": {"strt": 3}}, "Profiling has no field 'strt'"),
        ({"profiling": {"start": "x"}}, "engine.overrides.profiling.start: 'x' is not int"),
        ({"table": {"name": "x"}}, "Table needs rows too"),
        ({"train": {}}, "Container has no field 'train'"),
    ],
)
def test_what_does_not_fit_is_refused_and_named(overrides: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError) as caught:
        merged(overrides)
    assert any(part.replace("\\", "") in str(caught.value) for part in message.split("|"))


def test_what_our_own_sections_decide_is_refused_with_the_key_to_use() -> None:
    @dataclass
    class Train:
        train_iters: int = 1

    @dataclass
    class Whole:
        train: Train = field(default_factory=Train)

    with pytest.raises(UserError, match=r"another setting decides this\n  set train\.train_iters"):
        apply_overrides(Whole(), {"train": {"train_iters": 3}})


def test_the_place_of_a_wrong_key_is_said_when_it_is_known() -> None:
    origins = {"engine.overrides.model.hiden": "super3.yaml:14"}
    with pytest.raises(UserError, match=r"^super3\.yaml:14: engine\.overrides\.model\.hiden: "):
        apply_overrides(Container(), {"model": {"hiden": 3}}, origins)


def test_an_unknown_section_has_the_place_of_what_is_in_it() -> None:
    origins = {"engine.overrides": "megatron_bridge.yaml:25", "engine.overrides.modle.hidden_size": "command line"}
    with pytest.raises(UserError, match=r"^command line: engine\.overrides\.modle: "):
        apply_overrides(Container(), {"modle": {"hidden_size": 3}}, origins)


def test_what_fits_is_set_as_the_field_holds_it() -> None:
    model = {
        "hidden_size": 128,
        "dtype": "bfloat16",
        "backend": "fused",
        "capacity": 2,
        "modules": ["moe"],
        "kind": "b",
    }
    container = merged(
        {
            "model": model | {"sloppy": None, "rotary": 5},
            "profiling": {"start": 3},
            "table": {"rows": 2},
            "env_vars": {"B": "x"},
        }
    )
    assert container.model.dtype is torch.bfloat16
    assert container.model.backend is Backend.fused
    assert (container.model.hidden_size, container.model.capacity, container.model.kind) == (128, 2, "b")
    assert (container.model.rotary, type(container.model.rotary)) == (5, float)
    assert container.profiling == Profiling(3)
    assert container.table == Table(2)
    assert container.env_vars == {"A": 1, "B": "x"}


def test_two_containers_do_not_share_what_was_merged() -> None:
    merged({"env_vars": {"B": "x"}})
    assert Container().env_vars == {"A": 1}


@pytest.mark.parametrize(
    ("hint", "value", "whether"),
    [
        (float, 1, True),
        (int, True, False),
        (int, 1.0, False),
        (int | None, None, True),
        (list[str], ("a",), False),
        (Any, object(), True),
        (torch.dtype, torch.float16, True),
        (torch.dtype, "float16", False),
        (None, 3, False),
    ],
)
def test_fits(hint: Any, value: Any, whether: bool) -> None:
    assert fits(hint, value) is whether
