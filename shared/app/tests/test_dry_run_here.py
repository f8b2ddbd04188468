"""A dry run in the process of the command that asks for it: how it ends is how the command ends."""

import sys
from pathlib import Path

import pytest

from nemotron_app.launch import dry_run_of
from nemotron_app.main import main
from nemotron_app.request import Request
from nemotron_shared.system.errors import UserError

COMMANDS = [["plan", "sft/tiny"], ["doctor", "--for", "super3", "sft", "-c", "tiny"]]


def ends_with(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    """Let a step say something and end so."""

    def run(*_: object) -> int:
        print("looking at the rows", file=sys.stderr)
        raise error

    monkeypatch.setattr("nemotron_shared.step.step._run", run)


@pytest.fixture(autouse=True)
def _own_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEMOTRON_HOME", str(tmp_path))


@pytest.mark.parametrize("command", COMMANDS)
def test_interrupting_it_interrupts_the_command(
    command: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ends_with(monkeypatch, KeyboardInterrupt("nothing was begun"))
    assert main(command) == 130
    assert capsys.readouterr().err == "interrupted; nothing was begun\n"


@pytest.mark.parametrize(
    ("error", "said"), [(SystemExit(2), "SystemExit: 2"), (ValueError("no such row"), "ValueError: no such row")]
)
def test_one_that_breaks_off_is_one_message_with_all_that_it_said(
    error: BaseException, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ends_with(monkeypatch, error)
    with pytest.raises(UserError, match=f"the dry run ended with {said}") as caught:
        dry_run_of("sft", Request("super3", ("sft",), "tiny", (), dry_run=True, json=True))
    remedy = str(caught.value.remedy)
    assert remedy.startswith("looking at the rows")
    assert ("in run\n" in remedy) is isinstance(error, ValueError), "the traceback of a bug helps to fix it"
    assert main(COMMANDS[1]) == 1
    shown = capsys.readouterr().out
    assert f"FAIL  recipe: the dry run ended with {said}" in shown and "\nthis machine\n" in shown
