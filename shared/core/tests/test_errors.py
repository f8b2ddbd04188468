"""Errors for people: one message, an exit code, and no traceback where a reader leaves."""

import subprocess
import sys

PROGRAM = """
import sys
from nemotron_shared.errors import UserError, exit_code_of

def talk():
    print("a line " * 10_000, flush=True)
    print("another", flush=True)

sys.exit(exit_code_of(talk))
"""


def test_a_reader_that_leaves_is_no_error() -> None:
    process = subprocess.Popen([sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout and process.stderr
    process.stdout.close()
    assert process.stderr.read() == b""
    process.stderr.close()
    assert process.wait() == 141
