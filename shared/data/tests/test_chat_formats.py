"""The table of chat formats is open: a package adds one by an entry point."""

import shlex
from pathlib import Path

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser

from nemotron_data.chat.formats import CHAT_FORMATS, check_format, find_format, format_sources, recognise
from nemotron_shared.errors import UserError

CODE = """
def lines(row):
    return [{"role": "user", "content": row["instruction"]}, {"role": "assistant", "content": row["output"]}]

number = 3
"""


def install(place: Path, package: str, *formats: str, code: str = CODE) -> None:
    """What an installer leaves of a package: its module, and what its metadata says of entry points."""
    (place / f"{package}.py").write_text(code)
    metadata = place / f"{package}-1.2.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.2\n")
    lines = [f"{name} = {package}:{function}" for name, _, function in (entry.partition("=") for entry in formats)]
    (metadata / "entry_points.txt").write_text("[nemotron.chat_formats]\n" + "\n".join(lines) + "\n")


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def test_fields_of_any_name_are_suggested_as_the_shell_and_the_command_line_read_them() -> None:
    row = {"nr": 3, "Customer said": "2+2?", "Agent's reply (final)": "4"}
    with pytest.raises(UserError, match="no known chat format") as caught:
        recognise(row)
    words = shlex.split(str(caught.value.remedy).partition("the answer: ")[2])
    read = OverridesParser.create().parse_overrides(words)
    fields = {one.key_or_group: one.value() for one in read}
    assert fields == {
        "data_prep.prompt_field": "Customer said",
        "data_prep.response_field": "Agent's reply (final)",
    }


def test_a_package_adds_a_format(place: Path) -> None:
    install(place, "plain_formats", "lines=lines")
    assert check_format("lines") == "lines"
    found = find_format("lines").to_messages({"instruction": "2+2?", "output": "4"})
    assert [message["content"] for message in found] == ["2+2?", "4"]
    with pytest.raises(UserError, match="the chat format 'lines' fails: KeyError: 'instruction'"):
        find_format("lines").to_messages({"question": "2+2?"})


@pytest.mark.parametrize(
    "gives", ["None", "3", "float('nan')", "'a text'", "row", "[None]", "['text']", "(one for one in [])", "({},)",
              "1 / 0", "[{'role': 'user', 'content': float('nan')}]", "[{'role': 'user', 'content': '\\ud800'}]"],
)  # fmt: skip
def test_what_a_format_of_a_package_gives_is_checked_at_every_row(place: Path, gives: str) -> None:
    name = f"broken_{abs(hash(gives))}"
    install(place, name, f"{name}=lines", code=f"def lines(row):\n    return {gives}\n")
    with pytest.raises(UserError, match=f"the chat format '{name}' (gives .*, which is no list of messages|fails: )"):
        find_format(name).to_messages({"instruction": "2+2?"})


def test_data_is_made_again_when_the_code_of_a_format_changes(place: Path) -> None:
    install(place, "changing_formats", "lines=lines")
    (before,) = format_sources("lines")
    assert (before.uri, before.detail["version"]) == ("package:changing_formats", "1.2")
    (place / "changing_formats.py").write_text(CODE + "# changed\n")
    (after,) = format_sources("lines")
    assert after.digest != before.digest
    assert [format_sources(name) for name in CHAT_FORMATS] == [[]] * len(CHAT_FORMATS)


def test_an_unknown_name_lists_what_there_is(place: Path) -> None:
    install(place, "listed_formats", "lines=lines")
    for name, wanted in (("mesages", "did you mean 'messages'"), ("vicuna", "question_answer, input_output, lines")):
        with pytest.raises(UserError, match=f"no chat format named '{name}'") as caught:
            check_format(name)
        assert wanted in str(caught.value.remedy) and "lines" in str(caught.value.remedy)


@pytest.mark.parametrize(
    ("function", "message"), [("missing", "cannot be loaded: AttributeError"), ("number", "is no function")]
)
def test_a_broken_package_is_named(place: Path, function: str, message: str) -> None:
    install(place, f"broken_{function}", f"lines={function}")
    with pytest.raises(UserError, match=message) as caught:
        find_format("lines")
    assert f"broken_{function}" in caught.value.message


def test_two_packages_with_one_name_are_refused(place: Path) -> None:
    install(place, "first_formats", "lines=lines")
    install(place, "second_formats", "lines=lines")
    with pytest.raises(UserError, match="offered by first_formats and second_formats"):
        check_format("lines")
