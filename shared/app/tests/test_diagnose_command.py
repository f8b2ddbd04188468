"""`nemotron diagnose`: jobs by their id, folders and files; what is printed, and what its rules tell people to do."""

import json
import re
import shlex
from dataclasses import replace
from pathlib import Path

import pytest
from jobs import ended, folder_of, job_of, profile_of, submitted, wait_for

from nemotron_app.main import OTHER_COMMANDS, main
from nemotron_cluster.backends import backend_of
from nemotron_cluster.diagnose.causes import rules
from nemotron_cluster.job import EXIT_CODE, Record
from nemotron_shared.families import families
from nemotron_shared.machine.environments import environment_of

OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
COMMAND = re.compile(r"(?:^|: )(nemotron [^;()]+?)(?: \(|$)")


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Record:
    """A job of this machine, which has ended with exit code 3."""
    monkeypatch.setenv("NEMOTRON_HOME", str(tmp_path))
    profile = profile_of("local")
    backend = backend_of(profile)
    folder = folder_of(tmp_path, "exit 3")
    record = submitted(backend, job_of(), folder)
    record = replace(record, more={"profile": profile.model_dump(mode="json")})
    record.write()
    assert ended(backend, record).exit_code == 3
    wait_for((folder / EXIT_CODE).exists)
    return record


def test_a_job_is_found_by_its_id(job: Record, capsys: pytest.CaptureFixture[str]) -> None:
    with (Path(job.folder) / "log.txt").open("a") as log:
        log.write(f"{OOM}\n")
    for name in (str(job.id), "last", Path(job.folder).name, job.folder):
        assert main(["diagnose", name]) == 0, name
        said = capsys.readouterr().out
        assert said.startswith(f"job {job.id} (super3-sft): "), said
        assert "A GPU's memory is full." in said
        assert OOM in said
        assert "  - lower train.micro_batch_size" in said


def test_a_job_that_failed_in_unknown_words_shows_its_last_lines(
    job: Record, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["diagnose", str(job.id)]) == 1
    said = capsys.readouterr().out
    assert "the logs contain no known error message" in said
    assert "  step: exit 3" in said


def test_a_job_that_ended_well_is_healthy_whatever_it_said(job: Record, capsys: pytest.CaptureFixture[str]) -> None:
    folder = Path(job.folder)
    (folder / EXIT_CODE).write_text("0\n")
    with (folder / "log.txt").open("a") as log:
        log.write(f"{OOM}\n")
    assert main(["diagnose", str(job.id), "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["failed"], answer["facts"]["condition"]) == (False, "done")
    assert [one["id"] for one in answer["findings"]] == ["cuda-out-of-memory"]


def test_a_program_gets_everything(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "slurm-7.out").write_text(f"step 1\n\x1b[31m{OOM}\x1b[0m\n\x07bell\n")
    assert main(["diagnose", str(tmp_path), "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["failed"] and answer["known"]
    first = answer["findings"][0]
    assert (first["id"], first["level"], first["place"], first["line"]) == (
        *("cuda-out-of-memory", "cause", "slurm-7.out"),
        2,
    )
    assert first["text"] == OOM
    assert answer["read"] == ["slurm-7.out"]
    assert answer["last_lines"][-1] == r"\x07bell"


@pytest.mark.parametrize(("name", "what"), [("nowhere", "no file or folder"), ("/dev/null", "not a regular file")])
def test_what_is_no_log_is_an_error(
    name: str, what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("NEMOTRON_HOME", str(tmp_path))
    assert main(["diagnose", name]) == 2
    assert what in capsys.readouterr().err


@pytest.mark.parametrize("names", [(), ("empty.log",), ("weights.bin", "inner/rows.jsonl")])
def test_a_folder_without_a_log_is_an_error(
    tmp_path: Path, names: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("" if name.endswith(".log") else "{}")
    assert main(["diagnose", str(tmp_path)]) == 2
    assert f"{tmp_path}: nothing to read: no file that is named like a log" in capsys.readouterr().err
    (tmp_path / EXIT_CODE).write_text("0\n")  # a job that has said nothing
    assert main(["diagnose", str(tmp_path)]) == 0


def test_the_commands_of_the_rules_exist() -> None:
    found = {words for rule in rules() for text in rule.do for words in COMMAND.findall(text)}
    assert len(found) > 8
    for words in map(shlex.split, found):
        if words[1] in families():
            assert words[2:4] == ["data", "prep"], words
        elif words[1:3] == ["engine", "install"]:
            assert environment_of(words[3]), words
        else:
            assert words[1] in OTHER_COMMANDS, words
            subcommand = [word for word in words[1:3] if word.islower() and "/" not in word]
            with_help = [*subcommand, "--help"] if words[1] not in ("check", "diagnose") else [words[1], "--help"]
            assert main(with_help) == 0, words


@pytest.mark.parametrize(
    ("name", "content", "why"),
    [
        ("empty.log", b"", "nothing is in it"), ("blank.log", b" \n\n", "nothing is in it"),
        ("noise.log", bytes(range(256)) * 40, "a binary file"),
        ("weights.safetensors", b"{}" * 20, "a .safetensors file"),
        ("rows.jsonl", b'{"question": "2+2?", "answer": "4"}\n' * 3, "rows of JSON without a message"),
        ("README.md", b"# Errors\n\nWhat is done when a step failed.\n", "a .md file"),
    ],
)  # fmt: skip
def test_what_is_no_log_is_said_to_be_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, content: bytes, why: str
) -> None:
    (tmp_path / name).write_bytes(content)
    assert main(["diagnose", str(tmp_path / name)]) == 2
    assert f"{name}: not a log: {why}" in capsys.readouterr().err


@pytest.mark.parametrize(
    "content",
    [
        b"step 1 loss 2.3\nstep 2 loss 2.1\n", b'{"level": "info", "msg": "done"}\n',
        "Schritt 1: l\u00e4uft\n".encode("latin-1"), "step 1 loss 2.3\n".encode("utf-16"),
        b"\x1b[32mdone\x1b[0m\r  5%\r 10%\n",
    ],
)  # fmt: skip
def test_a_log_without_a_failure_is_one(tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes) -> None:
    (tmp_path / "job.out").write_bytes(content)
    assert main(["diagnose", str(tmp_path / "job.out")]) == 0
    assert "No sign of a failure." in capsys.readouterr().out
