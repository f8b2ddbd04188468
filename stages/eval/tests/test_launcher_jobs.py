"""Submitting once, looking on after a stop, and believing `status` only; the launcher here is a script of ours."""

import sys
from pathlib import Path

import pytest
from evaluator_support import program

from nemotron_shared.system.errors import UserError
from nemotron_shared.system.stop import Stopped
from nemotron_shared.tracking.run import Run
from stages.eval.engines.nemo_evaluator_launcher.launcher import Launcher
from stages.eval.harness import Program

# Reads the states to report, one line per look, from `states`; keeps a log of what it was asked.
SCRIPT = """#!{python}
import json, pathlib, sys
here = pathlib.Path({folder!r})
words = sys.argv[1:]
with (here / "calls").open("a") as calls:
    print(*words, file=calls)
if words[:2] == ["ls", "tasks"]:
    print(json.dumps({{"tasks": [{{"task": "hellaswag"}}, {{"task": "adlr_mmlu"}}]}}))
elif words[0] == "run" and "--dry-run" not in words:
    out = pathlib.Path(words[words.index("--config-output") + 1])
    if not (here / "refuses").exists():
        out.mkdir(parents=True, exist_ok=True)
        (out / "1a2b_config.yml").write_text("")
elif words[0] == "run":
    sys.exit(1 if (here / "bad").exists() else 0)
elif words[0] == "status":
    states = (here / "states").read_text().splitlines()
    (here / "states").write_text("\\n".join(states[1:] or states))
    print(json.dumps([{{"job_id": f"1a2b.{{n}}", "status": state}} for n, state in enumerate(states[0].split())]))
elif words[0] == "info":
    out = pathlib.Path(words[words.index("--copy-artifacts") + 1]) / "1a2b.0" / "artifacts"
    out.mkdir(parents=True)
    (out / "results.yml").write_text("results: {{}}")
"""


@pytest.fixture
def launcher(tmp_path: Path) -> Launcher:
    script = SCRIPT.format(python=sys.executable, folder=str(tmp_path))
    path = program(tmp_path / "bin" / "nemo-evaluator-launcher", script)
    run = Run(tmp_path / "run", "eval")
    run.directory.mkdir()
    return Launcher(Program(path), run, telemetry=False)


def calls(tmp_path: Path) -> list[str]:
    return (tmp_path / "calls").read_text().splitlines()


def test_jobs_are_submitted_once(launcher: Launcher, tmp_path: Path) -> None:
    assert launcher.submit({"evaluation": {}}) == "1a2b"
    assert launcher.submit({"evaluation": {}}) == "1a2b"
    assert sum(call.startswith("run") and "--dry-run" not in call for call in calls(tmp_path)) == 1


def test_a_refused_config_is_never_submitted(launcher: Launcher, tmp_path: Path) -> None:
    (tmp_path / "bad").touch()
    with pytest.raises(UserError, match="refuses the config"):
        launcher.submit({})
    assert all("--dry-run" in call for call in calls(tmp_path))


def test_a_submission_that_left_no_record_is_an_error(launcher: Launcher, tmp_path: Path) -> None:
    (tmp_path / "refuses").touch()
    with pytest.raises(UserError, match="nothing was submitted"):
        launcher.submit({})


def test_waiting_ends_when_all_jobs_have_succeeded(launcher: Launcher, tmp_path: Path) -> None:
    (tmp_path / "states").write_text("pending pending\nrunning success\nsuccess success")
    launcher.submit({})
    launcher.wait("1a2b", seconds=0)
    assert sum(call.startswith("status") for call in calls(tmp_path)) == 3
    assert list(launcher.fetch("1a2b", tmp_path / "fetched", ["hellaswag"])) == ["hellaswag"]
    with pytest.raises(UserError, match="openbookqa: the job left no results"):
        launcher.fetch("1a2b", tmp_path / "fetched", ["hellaswag", "openbookqa"])


def test_one_look_at_a_failure_is_not_enough(launcher: Launcher, tmp_path: Path) -> None:
    (tmp_path / "states").write_text("running\nfailed\nrunning\nsuccess")
    launcher.submit({})
    launcher.wait("1a2b", seconds=0)


def test_a_failure_that_lasts_is_an_error_and_the_next_attempt_submits_anew(launcher: Launcher, tmp_path: Path) -> None:
    (tmp_path / "states").write_text("running success\nfailed success")
    launcher.submit({})
    with pytest.raises(UserError, match=r"some jobs failed: 1a2b\.0: failed, 1a2b\.1: success"):
        launcher.wait("1a2b", seconds=0)
    launcher.submit({})
    assert sum(call.startswith("run") and "--dry-run" not in call for call in calls(tmp_path)) == 2


def test_a_stop_leaves_the_jobs_running(launcher: Launcher, tmp_path: Path) -> None:
    (tmp_path / "states").write_text("running")
    launcher.submit({})
    launcher._run.stop_requested = True
    with pytest.raises(Stopped, match="the jobs keep running"):
        launcher.wait("1a2b", seconds=5)
    assert not any(call.startswith("kill") for call in calls(tmp_path))


def test_a_task_that_the_launcher_lacks_is_refused(launcher: Launcher) -> None:
    launcher.require_tasks(["hellaswag", "lm-evaluation-harness.adlr_mmlu"])
    with pytest.raises(UserError, match="no task 'helaswag'") as caught:
        launcher.require_tasks(["helaswag"])
    assert "hellaswag" in str(caught.value)


def test_an_answer_that_is_no_json_is_shown(tmp_path: Path) -> None:
    path = program(tmp_path / "launcher", "#!/bin/sh\necho no such invocation\n")
    with pytest.raises(UserError, match="no such invocation"):
        Launcher(Program(path), Run(tmp_path, "eval"), telemetry=False).status("ffff")


def test_a_login_node_that_takes_no_key_is_refused(
    launcher: Launcher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ssh = program(
        tmp_path / "ssh" / "ssh", '#!/bin/sh\n[ "$3" = me@open ] || { echo Permission denied >&2; exit 255; }\n'
    )
    monkeypatch.setenv("PATH", f"{ssh.parent}:/usr/bin:/bin")
    launcher.require_login("me", "open")
    with pytest.raises(UserError, match="ssh me@login: Permission denied") as caught:
        launcher.require_login("me", "login")
    assert "authorized_keys" in str(caught.value)
