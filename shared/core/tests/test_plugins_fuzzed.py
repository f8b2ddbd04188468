"""What packages of other people bring is checked at the door: one error that names it, whatever it is."""

import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nemotron_shared import families
from nemotron_shared.config import registry
from nemotron_shared.config.registry import Registry, shown
from nemotron_shared.config.translation import REGISTRY, Dialect
from nemotron_shared.families import Family
from nemotron_shared.machine.library_output import LIBRARY_LOGS, LibraryLog, require_usable
from nemotron_shared.system.errors import UserError

WRONG = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5), st.binary(max_size=3),
    st.lists(st.integers(), max_size=2), st.dictionaries(st.integers(), st.none(), max_size=2),
    st.builds(object), st.builds(lambda: (one for one in "ab")), st.just(Family), st.just(print),
)  # fmt: skip
MANY = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture
def plugin(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """A module of a package that offers `THING` in every group."""
    module = ModuleType("their_package")
    monkeypatch.setitem(sys.modules, "their_package", module)
    monkeypatch.setattr(registry, "installed", lambda group: (("theirs", "their_package:THING", "their-package"),))
    yield module


@MANY
@given(value=WRONG)
def test_what_is_no_such_item_is_refused_by_name(plugin: ModuleType, value: Any) -> None:
    plugin.THING = value
    for table in (REGISTRY, LIBRARY_LOGS, families.OUTSIDE):
        with pytest.raises(UserError, match=rf"{table.kind} 'theirs': their_package:THING is .*, and must be a "):
            table.load("theirs")


def test_a_module_that_fails_or_lacks_the_name_is_told_with_its_error(plugin: ModuleType) -> None:
    with pytest.raises(UserError, match="their_package:THING cannot be loaded: AttributeError"):
        REGISTRY.load("theirs")
    own: Registry[Any] = Registry("thing", "nemotron.things", {"ours": "their_package:THING"})
    with pytest.raises(AttributeError):  # a fault of ours is no fault of a package's
        own.load("ours")


@MANY
@given(key=st.sampled_from(list(families.KINDS)), value=WRONG)
def test_a_family_holds_what_a_file_of_one_may_hold(plugin: ModuleType, key: str, value: Any) -> None:
    plugin.THING = Family(**{"title": "Theirs"} | {key: value})
    kind, _ = families.KINDS[key]
    good = isinstance(value, kind) or (key == "hub" and value is None)
    if key == "stages":
        good = isinstance(value, list | tuple) and not value
    if good:
        assert families._of_package("theirs") is plugin.THING
        return
    with pytest.raises(UserError, match="family 'theirs' of their_package: "):
        families._of_package("theirs")


@MANY
@given(value=WRONG)
def test_what_a_dialect_makes_of_a_value_is_settings(value: Any) -> None:
    dialect = Dialect(
        "Theirs", None, lambda content: 1 / 0, {"lr": lambda said: value}, frozenset(), recipe=lambda _: value
    )
    if isinstance(value, dict) and not value:
        assert dialect.settings("lr", 1) == {}
    else:
        with pytest.raises(UserError, match="lr: the dialect of Theirs returned"):
            dialect.settings("lr", 1)
    with pytest.raises(UserError, match="the dialect of Theirs: is_its fails: ZeroDivisionError"):
        dialect.ask("is_its", {})
    if not isinstance(value, str):
        with pytest.raises(UserError, match=r"the dialect of Theirs: recipe gives .*, and no str"):
            dialect.ask("recipe", {}, kind=str)


def test_a_value_that_a_dialect_was_not_written_for_is_told_with_its_key() -> None:
    dialect = Dialect(
        "Theirs", None, lambda content: True, {"lr": lambda said: {"optimizer.lr": float(said)}}, frozenset()
    )
    with pytest.raises(UserError, match="lr: the dialect of Theirs cannot read 'much': ValueError"):
        dialect.settings("lr", "much")


@MANY
@given(field=st.sampled_from(["title", "lines", "records", "keys", "first_step"]), value=WRONG)
def test_a_library_log_that_cannot_be_read_by_is_named(plugin: ModuleType, field: str, value: Any) -> None:
    log = LibraryLog(**{"title": "theirs", "lines": {"loss": "loss (.*)"}} | {field: value})
    try:
        require_usable("theirs", log)
    except UserError as error:
        assert "library log 'theirs' of their_package: " in str(error)
    else:
        assert all(isinstance(one, str) for one in (log.title, *log.records, *log.keys, *log.lines))


def test_a_pattern_that_is_none_is_named(plugin: ModuleType) -> None:
    with pytest.raises(UserError, match="library log 'theirs' of their_package: unterminated"):
        require_usable("theirs", LibraryLog("theirs", {"loss": "[a"}))


def test_a_value_is_shown_though_its_own_text_fails() -> None:
    class Silent:
        def __repr__(self) -> str:
            raise RuntimeError

    assert shown(Silent()) == "a Silent without a text (RuntimeError)"
    assert len(shown("a" * 10_000)) < 300
