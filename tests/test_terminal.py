"""What others wrote reaches a terminal spelled out: through one function, whichever command shows it."""

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

from nemotron_shared.system.console import pass_on, tell, tell_json
from nemotron_shared.system.errors import printable

ROOT = Path(__file__).resolve().parents[1]
ATTACK = "a\x1b]0;title\x07\x1b[2J\r\x9b31m\u202eevil\u2066\u200b\x7f\U000e0041\x00z"
BARE = {"write", "print", "echo"}
OWN = {
    "shared/core/src/nemotron_shared/system/console.py",  # the way out itself
    "shared/app/src/nemotron_app/completion.py",  # a script of click's for a shell, which must be exact
}


def bare_prints() -> list[str]:
    """Calls that print without spelling out: `print(x)`, and writes to the standard streams."""
    found, seen = [], 0
    for file in sorted([*ROOT.glob("shared/[acs]*/src/**/*.py")]):
        name = str(file.relative_to(ROOT))
        if name in OWN or name.startswith("shared/cluster"):  # those print on nodes, for our own commands to read
            continue
        seen += 1
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Call):
                continue
            text = ast.unparse(node.func)
            streams = text.startswith(("sys.stdout.", "sys.stderr.", "click.")) and text.rpartition(".")[2] in BARE
            if (text == "print" and not _is_plain(node)) or streams:
                found.append(f"{name}:{node.lineno}")
    assert seen > 100
    return found


def _is_plain(call: ast.Call) -> bool:
    """Whether all that is printed stands in the code itself, or was spelled out."""
    shown = [argument for argument in call.args if "printable(" not in ast.unparse(argument)]
    return all(isinstance(argument, ast.Constant) for argument in shown)


def test_every_line_takes_the_one_way_out() -> None:
    assert bare_prints() == []


def test_nothing_that_a_terminal_obeys_is_left(capfd: pytest.CaptureFixture[str]) -> None:
    tell(ATTACK + "\n\tnext")
    shown = capfd.readouterr().out
    assert all(char.isprintable() or char in "\n\t" for char in shown)
    assert shown.startswith("a\\x1b]0;title\\x07") and shown.endswith("z\n\tnext\n")
    assert printable("Grüße 你好 \U0001f600") == "Grüße 你好 \U0001f600"


def test_json_stays_exact(capfd: pytest.CaptureFixture[str]) -> None:
    value = {ATTACK: [ATTACK, "\ud800", {"n": 1.5, "text": "é\n"}]}
    tell_json(value)
    shown = capfd.readouterr().out
    assert json.loads(shown) == value
    assert all(char.isprintable() or char == "\n" for char in shown)


def test_a_log_is_exact_in_a_file_and_readable_on_a_terminal(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    log = b"step 1\rstep 2\x1b[31m\xff\n"
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    pass_on(log)
    assert capfd.readouterr().out == "step 1\nstep 2\\x1b[31m\ufffd\n"


LIBRARY = """
import logging, sys, warnings
from nemotron_shared.system.program import exit_code_of
said = sys.stdin.read()
def talk():
    logging.getLogger("a.library").addHandler(logging.StreamHandler())
    logging.getLogger("a.library").warning("\\x1b[1mUNEXPECTED\\x1b[0m %s", said)
    logging.getLogger("another").error(said)
    warnings.warn(said)
exit_code_of(talk)
"""


def test_what_libraries_log_and_warn_is_spelled_out_too() -> None:
    token = "hf_" + "aB3dE9" * 6
    command = [sys.executable, "-c", LIBRARY]
    done = subprocess.run(command, input=f"{ATTACK} {token}", capture_output=True, text=True, check=True)
    assert done.stderr.startswith("UNEXPECTED a\\x1b]0;title"), done.stderr
    assert done.stderr.count("title") == done.stderr.count("***") == 3
    assert token not in done.stderr
    assert all(char.isprintable() or char in "\n\t" for char in done.stderr)


def test_tables_of_rich_are_spelled_out_too() -> None:
    from io import StringIO

    from rich.console import Console

    from nemotron_app.output import Table, print_table

    out = StringIO()
    print_table(Console(file=out, width=400), Table([ATTACK], [[ATTACK]]))
    assert all(char.isprintable() or char == "\n" for char in out.getvalue())
