"""Errors for people: one message, an exit code, and no traceback where a reader leaves."""

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from nemotron_shared.system.program import exit_code_of

PROGRAM = """
import sys
from nemotron_shared.system.errors import UserError
from nemotron_shared.system.program import exit_code_of

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


def test_a_path_of_nobody_is_one_message(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code_of(lambda: Path("~nobody-of-this-name").expanduser() and 0) == 2
    assert capsys.readouterr().err.startswith("error: a path starts with ~")


@pytest.mark.parametrize("use", [Path.read_bytes, Path.resolve])
def test_a_link_to_itself_is_one_message(tmp_path: Path, capsys: pytest.CaptureFixture[str], use) -> None:
    (tmp_path / "loop").symlink_to("loop")

    def read() -> int:
        use(tmp_path / "loop")  # Path.resolve, from Python 3.13 on, has nothing against it
        return len((tmp_path / "loop").read_bytes())

    assert exit_code_of(read) == 2
    said = capsys.readouterr().err
    assert "loop" in said and "remove" in said and "Traceback" not in said


def test_a_folder_in_place_of_a_file_is_one_message(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code_of(lambda: len(tmp_path.read_bytes())) == 2
    assert f"{tmp_path}: Is a directory" in capsys.readouterr().err


def test_a_place_that_may_not_be_written_is_one_message(capsys: pytest.CaptureFixture[str]) -> None:
    def write() -> int:
        raise PermissionError(errno.EACCES, "Permission denied", "/data/made.jsonl")

    assert exit_code_of(write) == 2
    assert capsys.readouterr().err.startswith("error: /data/made.jsonl: Permission denied")


@pytest.mark.parametrize(
    ("number", "names", "said"),
    [
        (errno.ENOSPC, (), "a file could not be read or written: No space left on device"),
        (errno.EIO, ("/a/.tmp-x", None, "/a/x"), "/a/x: Input/output error"),
        (errno.EDQUOT, ("/a",), "/a: Disk quota exceeded"),
    ],
)
def test_a_full_or_failing_disk_is_one_message(
    number: int, names: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def write() -> int:
        raise OSError(number, os.strerror(number), *names)

    assert exit_code_of(write) == 2
    told = capsys.readouterr().err
    assert told.startswith(f"error: {said}") and "same command again" in told


def test_a_program_may_begin_with_its_output_closed() -> None:
    code = "import sys; from nemotron_shared.system.program import exit_code_of; sys.exit(exit_code_of(lambda: 0))"
    done = subprocess.run(["bash", "-c", '"$0" -c "$1" >&-', sys.executable, code], capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")


def test_any_other_error_of_the_system_keeps_its_traceback() -> None:
    def read() -> int:
        raise FileNotFoundError(errno.ENOENT, "No such file or directory", "/a")

    with pytest.raises(FileNotFoundError):
        exit_code_of(read)
