"""`nemotron env`: what it starts, lists, stops and shows."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nemotron_app.main import main
from nemotron_data.gym.client import Answer, Client


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NEMOTRON_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("NEMOTRON_ENGINES", str(tmp_path / "engines"))


@pytest.fixture
def started(tmp_path: Path) -> Iterator["subprocess.Popen[bytes]"]:
    command = [sys.executable, "-m", "nemotron_app.main", "env", "start", "drawers"]
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    while not (tmp_path / "home/environments/drawers.json").is_file():
        assert process.poll() is None, (tmp_path / "log").read_text()
        time.sleep(0.02)
    yield process
    process.kill()
    process.wait()


def listed(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    capsys.readouterr()
    assert main(["env", "list", "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def is_gone(pid: int) -> bool:
    until = time.monotonic() + 60
    while time.monotonic() < until:
        if subprocess.run(["ps", "-p", str(pid)], capture_output=True, check=False).returncode:
            return True
        time.sleep(0.05)
    return False


def test_what_is_started_is_listed_answers_and_is_stopped(
    started: "subprocess.Popen[bytes]", capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (one,) = listed(capsys)["running"]
    (answer,) = Client(one["port"], timeout=60, connections=1).post(
        [("/seed_session", {"world": 1, "expected_answer": ""}, {})]
    )
    assert isinstance(answer, Answer) and answer.status == 200
    assert f"http://127.0.0.1:{one['port']}, " in (tmp_path / "log").read_text()
    assert main(["env", "start", "drawers"]) == 2
    assert "is running already" in capsys.readouterr().err
    assert main(["env", "stop", "drawers"]) == 0
    assert started.wait() == 0
    assert is_gone(one["server"])
    assert listed(capsys)["running"] == []
    assert main(["env", "stop", "drawers"]) == 2


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_the_server_ends_with_the_command(
    started: "subprocess.Popen[bytes]", capsys: pytest.CaptureFixture[str], number: signal.Signals
) -> None:
    (one,) = listed(capsys)["running"]
    os.kill(started.pid, number)
    started.wait()
    assert is_gone(one["server"])
    assert listed(capsys)["running"] == []


def test_a_port_that_is_taken_is_one_error(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main(["env", "start", "drawers", "--port", str(port)]) == 2
    said = capsys.readouterr().err
    assert said.count("error:") == 1
    assert f"exit code 1): port {port}: Address already in use" in said and "give another --port" in said


def test_an_episode_is_tried_and_a_new_environment_passes_its_own_test(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main(["env", "try", "drawers", "--rows", "1"]) == 0
    said = capsys.readouterr().out
    assert "tool  find(name)" in said and "reward 1  used_tools 1" in said
    call = '<tool_call>{"name": "verify", "arguments": {}}</tool_call>'
    assert main(["env", "try", "drawers", "--say", call, "--say", "pink"]) == 0
    said = capsys.readouterr().out
    assert "there is no tool named 'verify'" in said and "reward 0" in said
    assert main(["new", "environment", "mine"]) == 0
    assert main(["env", "try", "mine"]) == 0
    assert "reward 1  comparisons 1" in capsys.readouterr().out
    folder = tmp_path / "environments" / "mine"
    subprocess.run([sys.executable, folder / "rows.py", "3", folder / "rows.jsonl"], check=True)
    assert main(["env", "try", "mine", str(folder / "rows.jsonl")]) == 0
    test = [sys.executable, "-m", "pytest", "-q", "-n0", "-p", "no:cacheprovider", str(folder / "test_mine.py")]
    assert "2 passed" in subprocess.run(test, capture_output=True, text=True, check=False, cwd=tmp_path).stdout
    logic = folder / "mine.py"
    logic.write_text(logic.read_text().replace("hidden", "secret"))
    assert main(["env", "try", "mine"]) == 2
    said = capsys.readouterr().err
    assert "solution: KeyError: 'secret'" in said and "rows.py 5" in said
    logic.write_text(logic.read_text() + "x = (")
    assert main(["env", "try", "mine"]) == 2
    assert "mine.py: SyntaxError" in capsys.readouterr().err


def test_nemo_gym_is_asked_for_where_it_is_needed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["env", "start", "nemo_gym:drawers"]) == 2
    assert "nemotron engine install nemo_gym" in capsys.readouterr().err


def test_another_version_of_nemo_gym_is_refused(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    about = tmp_path / "engines/nemo_gym/lib/python3.12/site-packages/nemo_gym-0.5.0.dist-info/METADATA"
    about.parent.mkdir(parents=True)
    about.write_text("Metadata-Version: 2.1\nName: nemo-gym\nVersion: 0.5.0\n")
    assert main(["env", "start", "nemo_gym:drawers"]) == 2
    said = capsys.readouterr().err
    assert "NeMo-Gym 0.5.0 is installed, and this works with 0.7.0 and 0.4.0" in said
    assert "nemotron engine install nemo_gym" in said


def test_the_help_shows_how_to_begin(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    listed = capsys.readouterr().out
    assert "\n  env [list|start|stop|new|try]  " in listed and "\n  new reward|task|environment NAME\n" in listed
    assert main(["new", "--help"]) == 0
    assert "nemotron new environment mine" in capsys.readouterr().out
