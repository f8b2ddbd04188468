"""Functions in a user's own file: found without running it, run once, counted with what it imports from its folder."""

import sys
from pathlib import Path

import pytest

from nemotron_shared.step.own_code import OwnFunction, digests_in, functions_in, own_code_problems
from nemotron_shared.system.errors import UserError

GIVEN = ("completion", "expected", "prompt", "row")
RAN = "from pathlib import Path\nPath(__file__).with_suffix('.ran').touch()\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])
    return tmp_path


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
    sys.modules.pop("sizes")


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
