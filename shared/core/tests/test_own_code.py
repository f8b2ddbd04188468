"""Functions in a user's own file: found without running it, run once, counted with what it imports from its folder."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from nemotron_shared.step.own_code import OURS, OwnFunction, digests_in, functions_in, own_code_problems
from nemotron_shared.system.errors import UserError

GIVEN = ("completion", "expected", "prompt", "row")
RAN = "from pathlib import Path\nPath(__file__).with_suffix('.ran').touch()\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])
    before = {*sys.modules}
    yield tmp_path
    for name in sys.modules.keys() - before:
        del sys.modules[name]


def write(folder: Path, text: str, name: str = "mine.py") -> OwnFunction:
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).write_text(text)
    return OwnFunction(f"{name}:right")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("def wrong(completion): ...", "mine.py has no function 'right'\n  it has: wrong"),
        ("def rigth(completion): ...", "mine.py has no function 'right'\n  did you mean 'rigth'?"),
        (
            "\n\ndef right(completion, gold): ...",
            "mine.py:3: right asks for 'gold', and may ask for: completion, expec",
        ),
        ("def right(completion, *, rows): ...", "mine.py:1: right asks for 'rows'"),
        ("def right(completion, /): ...", "mine.py:1: right takes 'completion' by its place"),
        ("def right(*rest): ...", "mine.py:1: right takes '*rest' by their places"),
        ("async def right(completion): ...", "mine.py:1: right is async"),
        ("def right(completion):\n  return (\n", "mine.py:2: not Python: '(' was never closed"),
        ("import other\ndef right(completion): ...", "other.py:1: not Python"),
    ],
)
def test_what_is_wrong_is_seen_without_running_the_file(folder: Path, text: str, told: str) -> None:
    own = write(folder, RAN + text if "mine.py:" not in told else text)
    write(folder, "def (", "other.py")
    (found,) = own.problems(GIVEN)
    assert str(found).startswith(told)
    with pytest.raises(UserError) as raised:
        own.load(GIVEN)
    assert str(raised.value) == str(found)
    assert not (folder / "mine.ran").exists()


@pytest.mark.parametrize("path", ["mine.py", "mine.py:", "mine.py:a b", "mine:right", "right", ""])
def test_a_path_names_a_file_and_a_function(path: str) -> None:
    with pytest.raises(UserError, match="names no function in a Python file"):
        OwnFunction(path)


def test_a_missing_file_is_told_with_the_folder(folder: Path) -> None:
    (found,) = OwnFunction("gone.py:right").problems(GIVEN)
    assert found.message == "gone.py: no such file"
    assert str(folder) in str(found.remedy)


@pytest.mark.parametrize(
    ("text", "asked"),
    [
        ("def right(row, completion): return 1.0", ("row", "completion")),
        ("def right(completion, strength=2, *, prompt=''): return strength", ("completion", "prompt")),
        ("right = lambda completion: 1.0", ("completion",)),
        ("def right(completion, **more): return float(len(more) == 3)", GIVEN),
        ("def right(*rest, **more): return 1.0", GIVEN),
        ("from other import right", ("expected",)),
        ("class Right:\n  def __call__(self, completion): return 1.0\nright = Right()", ("completion",)),
    ],
)
def test_a_function_gets_what_its_parameters_are_named_after(folder: Path, text: str, asked: tuple[str, ...]) -> None:
    write(folder, "def right(expected): return 1.0", "other.py")
    function, names = write(folder, text).load(GIVEN)
    assert names == asked
    assert function(**dict.fromkeys(names, "")) in (1.0, 2)


def test_it_runs_once_and_its_folder_hides_no_package(folder: Path) -> None:
    write(folder, "LENGTH = 3", "sizes.py")
    write(folder, "LENGTH = 4", "json.py")
    text = "import json\ndef right(completion):\n    import sizes\n    return json.loads('2') + sizes.LENGTH\n"
    with pytest.raises(UserError, match=r"json.py: another module is called 'json'"):
        write(folder, text).load(GIVEN)
    (folder / "json.py").unlink()
    own = write(folder, RAN + text)
    assert own.load(GIVEN)[0](completion="") == 5
    (folder / "mine.ran").unlink()
    assert own.load(GIVEN)[0](completion="") == 5
    assert not (folder / "mine.ran").exists()


def test_the_code_that_counts_is_the_file_and_what_it_imports_from_its_folder(folder: Path) -> None:
    own = write(folder, "import helpers.words\ndef right(completion): ...")
    write(folder, "from deeper import LENGTH", "helpers/words.py")
    write(folder, "LENGTH = 3", "deeper.py")
    write(folder, "LENGTH = 4", "unused.py")
    assert sorted(own.modules()) == ["deeper.py", "helpers/words.py", "mine.py"]
    values = {"rewards": [{"path": own.path}, {"name": "strict"}], "data_prep": {"tasks": ["capitals"]}}
    before = digests_in(values, ["rewards"])
    assert sorted(before) == ["deeper.py", "helpers/words.py", "mine.py"]
    assert digests_in(values, ["data_prep"]) == {}
    write(folder, "LENGTH = 3  # a remark", "deeper.py")
    assert digests_in(values, ["rewards"]) == before
    write(folder, "LENGTH = 5", "deeper.py")
    after = digests_in(values, ["rewards"])
    assert {name for name in after if after[name] != before[name]} == {"deeper.py"}


def test_a_package_of_the_same_name_does_not_take_the_place_of_the_file(folder: Path) -> None:
    write(folder, "", "mine/__init__.py")
    write(folder, "LENGTH = 3", "sizes.py")
    own = write(folder, "from sizes import LENGTH\ndef right(completion): return LENGTH")
    assert sorted(own.modules()) == ["mine.py", "sizes.py"]
    before = digests_in({"rewards": [{"path": own.path}]}, ["rewards"])
    assert own.load(GIVEN)[0](completion="") == 3
    write(folder, "from sizes import LENGTH\ndef right(completion): return LENGTH + 1")
    assert digests_in({"rewards": [{"path": own.path}]}, ["rewards"]) != before
    assert own.load(GIVEN)[0](completion="") == 4


@pytest.mark.parametrize("name", ["nemotron_utils", "stages_of_mine"])
def test_a_helper_may_be_called_nearly_as_a_package_of_ours(folder: Path, name: str) -> None:
    write(folder, "LENGTH = 3", f"{name}.py")
    own = write(folder, f"import {name}\ndef right(completion): return {name}.LENGTH")
    assert sorted(own.modules()) == sorted(["mine.py", f"{name}.py"])
    assert own.load(GIVEN)[0](completion="") == 3


def test_our_packages_are_not_looked_for_in_the_folder() -> None:
    members = {
        one.name for one in Path(__file__).resolve().parents[2].glob("*/src/*") if (one / "__init__.py").is_file()
    }
    assert "nemotron_shared" in members
    assert all(map(OURS.fullmatch, members)) and not OURS.fullmatch("nemotron_other")


def test_helpers_may_be_in_a_folder_without_init(folder: Path) -> None:
    own = write(folder, "from helpers import words\ndef right(completion): return words.LENGTH")
    write(folder, "LENGTH = 3", "helpers/words.py")
    assert not list(own.problems(GIVEN))
    assert own.load(GIVEN)[0](completion="") == 3
    write(folder, "LENGTH = 40", "helpers/words.py")
    assert own.load(GIVEN)[0](completion="") == 40, "a changed helper is imported anew"


def test_the_file_and_its_helpers_may_be_symlinks(folder: Path) -> None:
    write(folder, "LENGTH = 3", "elsewhere/real_sizes.py")
    write(folder, "import linked_sizes\ndef right(completion): return linked_sizes.LENGTH", "kept/real.py")
    (folder / "kept" / "linked_sizes.py").symlink_to(folder / "elsewhere" / "real_sizes.py")
    (folder / "linked.py").symlink_to(folder / "kept" / "real.py")
    own = OwnFunction("linked.py:right")
    assert own.load(GIVEN)[0](completion="") == 3
    assert sorted(own.modules()) == ["linked.py", "linked_sizes.py"]


def test_the_name_of_a_file_may_have_dots(folder: Path) -> None:
    own = write(folder, "def right(completion): return 2", "mine.v2.py")
    write(folder, "def right(completion): return 1", "mine.py")
    assert list(own.modules()) == ["mine.v2.py"]
    assert own.load(GIVEN)[0](completion="") == 2


@pytest.mark.parametrize(
    "text",
    [
        "import importlib, helpers.words\nhidden = importlib.import_module('helpers.hidden')",
        "import sys\nsys.path.insert(0, 'helpers')\nimport hidden",
    ],
)
def test_code_that_has_no_digest_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    write(folder, "", "helpers/words.py")
    write(folder, "LENGTH = 3", "helpers/hidden.py")
    own = write(folder, f"{text}\ndef right(completion): return hidden.LENGTH")
    for _ in range(2):
        with pytest.raises(UserError, match=r"hidden.py was imported, but no import statement"):
            own.load(GIVEN)


def test_packages_that_are_installed_below_the_folder_need_no_digest(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(folder, "LENGTH = 3", "packages/installed_sizes.py")
    monkeypatch.setattr(sys, "path", [*sys.path, str(folder / "packages")])
    own = write(folder, "import installed_sizes\ndef right(completion): return installed_sizes.LENGTH")
    assert own.load(GIVEN)[0](completion="") == 3
    assert list(own.modules()) == ["mine.py"]


def test_the_place_of_an_error_is_the_last_line_of_the_users(folder: Path) -> None:
    write(folder, "import json\n\n\ndef parse(text):\n    return json.loads(text)", "reading.py")
    own = write(folder, "from reading import parse\ndef right(completion):\n    return parse(completion)")
    function, _ = own.load(GIVEN)
    with pytest.raises(ValueError) as raised:
        function(completion="{")
    assert own.place_of(raised.value) == "reading.py:5"
    with pytest.raises(UserError, match=r"worse.py:1: importing it raised ZeroDivisionError") as failed:
        write(folder, "1 / 0\ndef right(completion): ...", "worse.py").load(GIVEN)
    assert failed.value.remedy == "run it alone: python worse.py"


def test_nothing_runs_without_consent(folder: Path) -> None:
    own = write(folder, RAN + "def right(completion): ...")
    values = {"rewards": [{"path": own.path}]}
    (found,) = own_code_problems(values, ["rewards"], "--trust-code")
    assert str(found) == "this runs mine.py\n  read it, then add --trust-code to the command"
    assert not list(own_code_problems(values, ["rewards"], None))
    assert not list(own_code_problems(values, ["data_prep"], "--trust-code"))
    assert not (folder / "mine.ran").exists()


@pytest.mark.parametrize(
    "rewards", [None, "a", 3, [], [None], ["strict"], [{"path": 3}], [{"path": None}], {"path": "x"}]
)
def test_other_values_name_no_functions(rewards: object) -> None:
    assert functions_in({"rewards": rewards}, ["rewards"]) == {}
