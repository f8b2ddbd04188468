"""`nemotron runs` as people and programs use it, with real processes that hold real locks."""

import json
import os
import shutil
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from nemotron_app.completions import without_shared
from nemotron_app.main import dispatch
from nemotron_app.report.compare import training_in
from nemotron_app.wording import short_path, table_lines
from nemotron_shared.artifacts import Store
from nemotron_shared.artifacts.manifest import Producer
from nemotron_shared.artifacts.names import Reference
from nemotron_shared.artifacts.starting import inputs_kept
from nemotron_shared.system.atomic import write_json
from nemotron_shared.system.errors import UserError
from nemotron_shared.system.lock import holder_of, locked, record_of
from nemotron_shared.tracking.completions import Completion, CompletionsLog, Turn

# A step's process: it holds the run's lock, and a first SIGTERM ends it between two steps.
WORKER = """
import pathlib, sys, time
from nemotron_shared.tracking.run import locked_run
with locked_run(pathlib.Path(sys.argv[1]), "x", "") as run, run.watched():
    print("working", flush=True)
    while not run.stop_requested:
        time.sleep(0.05)
"""


@pytest.fixture
def home(tmp_path: Path, monkeypatch) -> Path:
    monkeypatch.setenv("NEMOTRON_HOME", str(tmp_path))
    return tmp_path


def folder_of(home: Path, name: str, *, published: bool) -> Path:
    folder = home / "runs" / name
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text("run: {}\n")
    (folder / "metrics.jsonl").write_text('{"step": 1, "loss": 3.0}\n{"step": 2, "loss": 2.51234}\n{"step": 3, "lo')
    if not published:
        write_json(folder / "inputs.json", ["super3-sft-data:v1"])
    return folder


def main(argv: list[str]) -> int:
    return dispatch(["runs", *argv])


def run(capsys, *argv: str) -> tuple[int, str]:
    code = main(list(argv))
    return code, capsys.readouterr().out


def states(capsys, *argv: str) -> list[tuple[str, str]]:
    return [(row["name"], row["state"]) for row in json.loads(run(capsys, *argv, "--json")[1])]


@pytest.fixture
def worker(home: Path):
    folder = folder_of(home, "super3-sft-model-aaaa", published=False)
    process = subprocess.Popen([sys.executable, "-c", WORKER, str(folder)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "working\n"
    yield process
    process.kill()
    process.wait()


def test_an_rl_run_tells_its_rewards(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = folder_of(home, "super3-rl-model-aaaa", published=False)
    (folder / "metrics.jsonl").write_text('{"step": 9, "loss": 0.1, "reward": 0.5}\n')
    assert "step 9 reward 0.5 " in run(capsys)[1]
    (folder / "metrics.jsonl").write_text('{"step": 9, "valid_loss": 0.0, "valid_reward": 1.0}\n')
    assert "step 9 valid_reward 1 " in run(capsys)[1]


def completions_of(step: int) -> list[Completion]:
    """The best and the worst completion of a step, the worst of an episode."""
    about = {
        "step": step,
        "prompt": "<|im_start|>user\nHow much is 2+2?<|im_end|>\n<|im_start|>assistant\n",
        "expected": "4",
    }
    best = Completion(which="best", completion=f"4 in step {step}", rewards={"strict": 1.0}, reward=1.0, advantage=0.5,
                      tokens=3, ended="stopped", **about)  # fmt: skip
    turns = [Turn(by="model", tokens=9, text="add(2, 2) " * 60), Turn(by="environment", tokens=2, text="\x1b[2J4")]
    worst = Completion(which="worst", completion="", rewards={"strict": 0.0}, reward=0.0, tokens=9, ended="turns",
                       turns=turns, turns_in_all=2, calls=1, refused_calls=0, **about)  # fmt: skip
    return [best, worst]


def test_a_run_shows_its_newest_completions(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = folder_of(home, "super3-rl-model-aaaa", published=False)
    assert "no completions are kept: only RL keeps some, unless logger.completions=0" in run(capsys, "show", "rl")[1]
    log = CompletionsLog(folder / "completions.jsonl")
    for step in (1, 2, 4):
        log.append(step, completions_of(step))
    monkeypatch.setattr("nemotron_app.output.WIDTH_IN_A_PIPE", 80)
    said = run(capsys, "show", "rl")[1]
    assert said.startswith("super3-rl-model-aaaa: stopped, step 2 loss 2.512\n")
    shown = "step 4: best\n  reward 1, advantage +0.5, 3 tokens, stopped\n  prompt    user: How much is 2+2?\n"
    assert f"{shown}  written   4 in step 4\n  expected  4\n\nstep 4: worst\n" in said
    assert "  reward 0, 9 tokens, out of turns, 1 turn, 1 call\n" in said
    assert "  model     add(2, 2) add(2, 2)" in said and "            ... (5 more lines)\n" in said
    assert "step 2:" not in said and "\x1b" not in said and max(map(len, said.splitlines()[2:])) <= 80
    assert "step 2: best" in run(capsys, "show", "rl", "--step", "2")[1]
    found = json.loads(run(capsys, "show", "rl", "--step", "1", "--json")[1])
    assert [Completion.model_validate(one) for one in found["completions"]] == completions_of(1)
    with pytest.raises(UserError) as error:
        main(["show", "rl", "--step", "3"])
    assert (error.value.message, error.value.remedy) == (
        "super3-rl-model-aaaa: no completions of step 3", "there are those of steps 1 to 4 (3 steps)"
    )  # fmt: skip
    other = folder_of(home, "super3-rl-model-bbbb", published=True)
    for older, newer in ((folder, other), (other, folder)):
        os.utime(older / "config.yaml", (1, 1))
        os.utime(newer / "config.yaml", (2, 2))
        assert run(capsys, "show", "rl")[1].startswith(f"{newer.name}: ")
    with log.path.open("a") as file:
        file.write("nothing\n")
    assert "completions.jsonl is damaged: line 7: Invalid JSON" in run(capsys, "show", "rl")[1]


def test_a_run_before_its_first_step_has_no_completions_yet(home: Path, worker, capsys) -> None:
    folder = home / "runs" / "super3-sft-model-aaaa"
    (folder / "config.yaml").write_text("logger: {completions: 4}\n")
    assert "only RL keeps some" in run(capsys, "show", "sft")[1], "it has a step"
    (folder / "metrics.jsonl").unlink()
    assert "no completions yet: the first step is not done" in run(capsys, "show", "sft")[1]
    (folder / "config.yaml").write_text("logger: {completions: 0}\n")
    assert "only RL keeps some" in run(capsys, "show", "sft")[1]


def test_a_step_that_is_starting_is_named_beside_the_last_run(home: Path, capsys) -> None:
    folder_of(home, "super3-rl-model-aaaa", published=True)
    made = Reference("super3-sft-model", 1)
    store = Store(home)
    store.folder(made).mkdir(parents=True)
    with inputs_kept(store, [made]):
        said = run(capsys, "show", "rl")[1]
        assert f"newer: a step that is starting (process {os.getpid()}" in said and "reads super3-sft-model:v1;" in said
        with locked(home / "runs" / "super3-rl-model-aaaa" / "lock", wait=False):
            assert "newer" not in run(capsys, "show", "rl")[1], "it may be the run itself"
    assert "newer" not in run(capsys, "show", "rl")[1]


def test_a_damaged_last_line_is_passed_over(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = folder_of(home, "super3-rl-model-aaaa", published=False)
    (folder / "metrics.jsonl").write_text('{"step": 9, "reward": 0.5}\n' + "[" * 10_000 + "\n")
    assert "step 9 reward 0.5 " in run(capsys)[1]


@pytest.mark.parametrize("put", [os.mkfifo, os.mkdir])
@pytest.mark.parametrize("name", ["metrics.jsonl", "config.yaml", "inputs.json", "lock.json"])
def test_pipes_and_folders_in_place_of_its_files_keep_nobody_waiting(home: Path, capsys, put, name: str) -> None:
    folder = folder_of(home, "super3-rl-model-aaaa", published=False)
    (folder / name).unlink(missing_ok=True)
    put(folder / name)
    code, said = run(capsys, "--all")
    assert code == 0 and "super3-rl-model-aaaa" in said
    assert bool(training_in(folder).entries) == (name != "metrics.jsonl")
    with pytest.raises(UserError, match=r"no expectations|does not say which recipe"):
        dispatch(["check", str(folder)])
    assert dispatch(["artifacts", "gc"]) == 0


def test_where_a_linked_run_leads_nothing_is_written_or_removed(home: Path, tmp_path_factory) -> None:
    outside = tmp_path_factory.mktemp("outside")
    (outside / "config.yaml").write_text("run: {}\n")
    (home / "runs").mkdir()
    (home / "runs" / "super3-sft-model-aaaa").symlink_to(outside)
    with pytest.raises(UserError, match="super3-sft-model-aaaa: a link"):
        main(["rm", "super3-sft-model-aaaa"])
    assert [path.name for path in outside.iterdir()] == ["config.yaml"]
    assert [path.name for path in (home / "runs").iterdir()] == ["super3-sft-model-aaaa"]


def test_a_store_without_runs_says_so(home: Path, capsys) -> None:
    assert run(capsys) == (0, f"no running or stopped runs in {home / 'runs'}\n")
    assert states(capsys) == []


def test_running_and_stopped_runs_are_listed_and_finished_ones_on_request(home: Path, worker, capsys) -> None:
    folder_of(home, "super3-rl-model-bbbb", published=False)
    folder_of(home, "super3-sft-data-cccc", published=True)
    running, stopped = ("super3-sft-model-aaaa", "running"), ("super3-rl-model-bbbb", "stopped")
    assert states(capsys) == [stopped, running]
    assert states(capsys, "--all") == [stopped, ("super3-sft-data-cccc", "finished"), running]
    code, out = run(capsys)
    assert code == 0 and f"{worker.pid} on " in out and "step 2 loss 2.512" in out and "1 finished" in out
    row = json.loads(run(capsys, "list", "--json")[1])[1]
    assert row["pid"] == worker.pid and row["last"] == {"step": 2, "loss": 2.51234} and row["bytes"] > 0


def test_stop_asks_the_process_and_waits_until_it_is_gone(home: Path, worker, capsys) -> None:
    with pytest.raises(UserError, match="is running: process") as caught:
        main(["rm", "sft"])
    assert caught.value.remedy == "stop it first: nemotron runs stop super3-sft-model-aaaa"
    code, out = run(capsys, "stop", "sft", "--timeout", "120")
    assert code == 0 and f"asked process {worker.pid} to save and stop" in out and "stopped after" in out
    assert worker.wait(300) == 0
    assert states(capsys) == [("super3-sft-model-aaaa", "stopped")]
    with pytest.raises(UserError, match="no running run 'sft'"):
        main(["stop", "sft"])
    assert "removed super3-sft-model-aaaa" in run(capsys, "rm", str(home / "runs" / "super3-sft-model-aaaa"))[1]
    assert list((home / "runs").iterdir()) == []


def test_a_killed_process_leaves_a_stopped_run(home: Path, worker, capsys) -> None:
    worker.kill()
    worker.wait()
    assert states(capsys) == [("super3-sft-model-aaaa", "stopped")]


def test_a_run_of_another_machine_is_shown_and_left_alone(home: Path, worker, capsys, monkeypatch) -> None:
    lock = home / "runs" / "super3-sft-model-aaaa" / "lock"
    holder = holder_of(lock)
    assert holder is not None
    write_json(record_of(lock), asdict(replace(holder, machine="another", host="node7")))
    monkeypatch.setattr("nemotron_shared.system.lock._file_system", lambda path: "nfs4")
    assert states(capsys) == [("super3-sft-model-aaaa", "running")]
    with pytest.raises(UserError, match="runs on node7 as process") as caught:
        main(["stop", "sft"])
    assert caught.value.remedy == f"stop it there: ssh -- node7 kill -TERM {worker.pid}"
    os.kill(worker.pid, 0)


def test_what_is_ambiguous_or_unknown_is_an_error(home: Path) -> None:
    for name in ("super3-sft-model-aaaa", "super3-sft-model-bbbb"):
        folder_of(home, name, published=False)
    with pytest.raises(UserError, match="could be: super3-sft-model-aaaa, super3-sft-model-bbbb"):
        main(["rm", "sft"])
    for wanted in ("rl", "./nowhere"):
        with pytest.raises(UserError, match="no run"):
            main(["rm", wanted])


@pytest.mark.parametrize(
    ("width", "shown"), [("200", "run state last size"), ("36", "run last size"), ("9", "run last")]
)
def test_a_narrow_terminal_shows_fewer_columns(monkeypatch: pytest.MonkeyPatch, width: str, shown: str) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", width)
    rows = [["super3-rl-model", "finished", "step 16", "1.3 MB"], ["sft", "stopped", "step 2 \x1b", ""]]
    lines = table_lines(("run", "state", "last", "size"), rows, right=("size",), spare=("state", "size"))
    assert lines[0].split() == shown.split() and "\\x1b" in lines[2]
    assert ("1.3 MB" in lines[1]) is ("size" in shown) and ("finished" in lines[1]) is ("state" in shown)


def test_a_path_is_short_below_the_working_and_the_home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path.parent))
    assert short_path(str(tmp_path / "runs" / "one")) == "runs/one"
    assert short_path(str(tmp_path.parent / "other")) == "~/other"
    assert short_path("/opt/store") == "/opt/store"


def test_a_version_means_the_run_that_made_it(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for digest in ("aaaa", "bbbb"):
        folder = folder_of(home, f"super3-rl-model-{digest}", published=True)
        (made := home / digest).mkdir()
        (made / "weights").write_text(digest)
        shutil.copy(folder / "metrics.jsonl", made)
        producer = Producer("rl", "train", "0", "0", digest, "d", None, "nemotron super3 rl -c tiny", {})
        Store(home).publish(made, name="super3-rl-model", type="ModelArtifact", fingerprint=digest, producer=producer)
        os.utime(folder / "config.yaml", (1, 1 if digest == "aaaa" else 2))
    for wanted, digest in (("rl", "bbbb"), ("rl:v1", "aaaa"), ("super3-rl-model:2", "bbbb")):
        assert run(capsys, "show", wanted)[1].startswith(f"super3-rl-model-{digest}: ")
    with pytest.raises(UserError, match="no super3-rl-model:v3 in "):
        main(["show", "rl:v3"])
    with (home / "runs" / "super3-rl-model-aaaa" / "metrics.jsonl").open("a") as file:
        file.write("of another run\n")
    for verb in ("show", "rm"):
        with pytest.raises(UserError, match="super3-rl-model:v1: the folder of its run was used again") as caught:
            main([verb, "rl:v1"])
    assert caught.value.remedy is not None and "nemotron runs show super3-rl-model-aaaa" in caught.value.remedy
    assert run(capsys, "show", "super3-rl-model-aaaa")[1].startswith("super3-rl-model-aaaa: ")


def test_the_last_column_goes_on_below_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "40")
    rows = [("pass", "mean reward, last third less first third"), ("fail", "none")]
    assert table_lines(("verdict", "what"), rows, wrapped=True) == [
        "verdict  what",
        "pass     mean reward, last third less",
        "         first third",
        "fail     none",
    ]


@pytest.mark.parametrize(
    ("texts", "shown"),
    [
        (["A lift is at 9-8. Which?", "A lift is at 1+3. Which?"], ["… 9-8. …", "… 1+3. …"]),
        (["2+2?", "Why?"], ["2+2?", "Why?"]),
        (["one two", "one two three"], ["…", "… three"]),
        (["the same", "the same"], ["the same", "the same"]),
        (["", "x"], ["", "x"]),
        ([], []),
    ],
)
def test_words_that_all_texts_share_are_left_out(texts: list[str], shown: list[str]) -> None:
    assert without_shared(texts) == shown
