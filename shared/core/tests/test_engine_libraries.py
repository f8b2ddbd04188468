"""An engine's libraries are imported without the packages that it says it does not need."""

import gc
import importlib
import importlib.util
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from nemotron_shared.engine import engine
from nemotron_shared.engine.engine import Engine, import_libraries
from nemotron_shared.system.stop import Stopped

LIBRARY = """
import gc, importlib.util
collecting, kept = gc.isenabled(), [[]]
found = {name: importlib.util.find_spec(name) is not None for name in ("optional_one", "optional_two", "loaded_one")}
try:
    import optional_one
except ImportError:
    optional_one = None
"""


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    names = ("optional_one", "optional_two", "loaded_one")
    for name in names:
        (tmp_path / f"{name}.py").write_text("")
    (tmp_path / "own_library.py").write_text(LIBRARY)
    for name in (*names, "own_library"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    importlib.invalidate_caches()


class Own(Engine):
    libraries = "own_library"
    unneeded = ("optional_one", "loaded_one")


@pytest.mark.usefixtures("packages")
def test_what_is_not_needed_is_not_found_meanwhile() -> None:
    loaded = importlib.import_module("loaded_one")
    import_libraries(Own)
    library = sys.modules["own_library"]
    assert library.found == {"optional_one": False, "optional_two": True, "loaded_one": True}
    assert library.optional_one is None
    assert importlib.import_module("optional_one") and importlib.import_module("loaded_one") is loaded


@pytest.mark.usefixtures("packages")
def test_it_is_found_again_after_an_import_that_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Own, "libraries", "no_such_library")
    with pytest.raises(ModuleNotFoundError, match="no_such_library"):
        import_libraries(Own)
    assert importlib.util.find_spec("optional_one") is not None


@pytest.mark.usefixtures("packages")
def test_no_garbage_is_looked_for_among_what_is_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    import_libraries(Own)
    library = sys.modules["own_library"]
    try:
        assert not library.collecting and gc.isenabled()
        assert not any(found is library.kept for found in gc.get_objects()), "later collections do not look at it"
    finally:
        gc.unfreeze()
    monkeypatch.setattr(Own, "libraries", "no_such_library")
    with pytest.raises(ModuleNotFoundError):
        import_libraries(Own)
    assert gc.isenabled()


class Interrupted(Engine):
    libraries = "own_library_that_a_signal_has_kept_from_being_imported"


def test_a_signal_that_libraries_turn_into_an_error_of_theirs_stops_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "engine_of", lambda config: Interrupted())
    run = SimpleNamespace(stop_requested=True, stopped=lambda: Stopped("stopped"))
    with pytest.raises(Stopped):
        engine.run_engine(SimpleNamespace(config=None, run=run))  # ty: ignore[invalid-argument-type]
