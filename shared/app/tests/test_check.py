"""`nemotron check` on logs of clusters and on runs of ours: what is judged, what is not, and what is said."""

import json
import os
import re
import time
from pathlib import Path
from typing import Any

import pytest
from check_logs import (
    automodel_log,
    falling,
    grpo_step,
    gym_bar,
    nvidia_smi,
    sft_log,
    write_events,
    write_metrics,
)
from test_artifact_command import publish

from nemotron_app.main import dispatch
from nemotron_shared.artifacts import Store
from nemotron_shared.system.errors import UserError
from nemotron_shared.system.lock import locked

HEALTHY = falling(2.5, 1.5, 50)
CONFIG = """
run: {family: super3}
engine: {name: transformers}
model: {architecture: super3_tiny}
data_prep: {source: synthetic}
train: {train_iters: 280}
"""


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("NEMOTRON_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "home"


def check(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, dict[str, Any]]:
    code = dispatch(["check", *map(str, words), "--json"])
    return code, json.loads(capsys.readouterr().out)


def verdicts(document: dict[str, Any]) -> dict[str, str]:
    return {one["id"]: one["verdict"] for one in document["judged"]}


def remedy(document: dict[str, Any], name: str) -> str:
    return next(one["remedy"] for one in document["judged"] if one["id"] == name)


def value(document: dict[str, Any], name: str) -> Any:
    return next(one["value"] for one in document["judged"] if one["id"] == name)


def written(path: Path, text: str, minutes: float = 0.0) -> Path:
    """A file that was last written to so many minutes ago."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    moment = time.time() - 60 * minutes
    os.utime(path, (moment, moment))
    return path


def tiny_run(home: Path, losses: list[float], *, finished: bool = True, name: str = "super3-sft-model-aaaa") -> Path:
    folder = home / "runs" / name
    entries: list[dict[str, float]] = [
        {"step": step, "loss": loss, "seconds": 0.1 * step} for step, loss in enumerate(losses, 1)
    ]
    write_metrics(folder / "metrics.jsonl", [*entries, {"step": len(losses), "valid_loss": losses[-1] + 0.02}])
    (folder / "config.yaml").write_text(CONFIG)
    if not finished:
        (folder / "inputs.json").write_text("[]")
    return folder


def test_a_healthy_fine_tuning_of_super_49b_passes(tmp_path: Path, capsys) -> None:
    log = written(tmp_path / "ray-driver.log", sft_log(50, HEALTHY))
    gpus = written(tmp_path / "gpus.txt", nvidia_smi(93))
    tokens = dict.fromkeys(range(1, 51), 12_000_000.0)
    times = dict.fromkeys(range(1, 51), 182.0)
    scalars = {"train/global_valid_toks": tokens, "timing/train/total_step_time": times}
    write_events(tmp_path / "logs" / "exp_001" / "tensorboard", scalars)
    code, found = check(capsys, log, gpus, tmp_path / "logs", "--expect", "sft/super49b")
    assert code == 0 and found["verdict"] == "pass" and (found["step"], found["steps"]) == (50, 50)
    assert verdicts(found) == {
        **dict.fromkeys(("started", "no-oom", "parallel-plan", "model-download", "nodes", "gpus"), "pass"),
        **dict.fromkeys(("first-loss", "final-loss", "validation", "throughput"), "pass"),
        **dict.fromkeys(("first-step", "step-time", "total-time"), "pass"),
        "tensorboard": "not judged",  # the last step is done: nothing more is written
    }
    assert value(found, "first-loss") == 2.5 and value(found, "gpus") == 93
    assert value(found, "throughput") == pytest.approx(12_000_000 / 182, rel=1e-3)


SICK = [
    ("first-loss", "fail", sft_log(50, falling(9.0, 1.5, 50)), "policy.tokenizer.chat_template"),
    ("final-loss", "fail", sft_log(50, falling(2.5, 2.4, 50)), "optimizer.lr"),
    ("final-loss", "watch", sft_log(50, falling(2.5, 1.95, 50)), "optimizer.lr"),
    ("validation", "fail", sft_log(50, HEALTHY, valid=0.9), "learns its rows by heart"),
    ("validation", "watch", sft_log(50, HEALTHY, valid=0.35), "learns its rows by heart"),
    ("step-time", "fail", sft_log(50, HEALTHY, seconds=900), "NCCL_DEBUG=INFO"),
    ("step-time", "watch", sft_log(50, HEALTHY, seconds=310), "NCCL_DEBUG=INFO"),
    ("total-time", "watch", sft_log(50, HEALTHY, seconds=290), "more time"),
    ("no-oom", "fail", sft_log(3, HEALTHY) + "torch.OutOfMemoryError: CUDA out of memory. Tried\n", "cpu_offload=true"),
    ("parallel-plan", "fail", "ModuleNotFoundError: No module named 'custom_parallel'\n", "PYTHONPATH=$PWD"),
    ("model-download", "fail", "huggingface_hub.errors.GatedRepoError: 403 Client Error.\n", "HF_TOKEN"),
    ("nodes", "fail", "slurmstepd: error: *** JOB 1 CANCELLED DUE TO NODE FAILURE ***\n", "scontrol show node"),
    ("final-loss", "fail", sft_log(49, HEALTHY) + sft_log(50, lambda _: float("nan"), first=50), "continue from a"),
]


@pytest.mark.parametrize(("name", "verdict", "log", "remedy"), SICK, ids=[f"{row[0]}-{row[1]}" for row in SICK])
def test_what_is_not_healthy_is_said_with_the_guides_remedy(
    tmp_path: Path, capsys, name: str, verdict: str, log: str, remedy: str
) -> None:
    file = written(tmp_path / "driver.log", log)
    code, found = check(capsys, file, "--expect", "sft/super49b")
    assert verdicts(found)[name] == verdict
    assert remedy in next(one["remedy"] for one in found["judged"] if one["id"] == name)
    assert code == (1 if "fail" in verdicts(found).values() else 0)
    dispatch(["check", str(file), "--expect", "sft/super49b"])
    assert f"{verdict}: {name}\n" in capsys.readouterr().out


def test_gpus_that_idle_are_a_failure_and_unseen_ones_are_not_judged(tmp_path: Path, capsys) -> None:
    log = written(tmp_path / "driver.log", sft_log(20, HEALTHY))
    assert verdicts(check(capsys, log, "--expect", "sft/super49b")[1])["gpus"] == "not judged"
    gpus = written(tmp_path / "gpus.txt", nvidia_smi(12))
    code, found = check(capsys, log, gpus, "--expect", "sft/super49b")
    assert (code, verdicts(found)["gpus"], value(found, "gpus")) == (1, "fail", 12)
    written(gpus, nvidia_smi(79))
    assert verdicts(check(capsys, log, gpus, "--expect", "sft/super49b")[1])["gpus"] == "watch"
    use = {f"ray/node.{node}.gpu.{gpu}.util": {10: 85.0, 20: 95.0} for node in range(2) for gpu in range(2)}
    write_events(tmp_path / "logs" / "exp_004" / "tensorboard", use)
    found = check(capsys, log, tmp_path / "logs", "--expect", "sft/super49b")[1]
    assert (verdicts(found)["gpus"], value(found, "gpus")) == ("pass", 90)


def test_the_gpus_of_a_run_on_this_machine_are_asked_themselves(home: Path, capsys, monkeypatch) -> None:
    folder = tiny_run(home, [2.5, 2.4], finished=False)
    program = written(home / "bin" / "nvidia-smi", f"#!/bin/sh\ncat <<'END'\n{nvidia_smi(84)}END\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    monkeypatch.setattr("nemotron_app.check.readings.SAMPLES", 1)
    assert verdicts(check(capsys, folder, "--expect", "sft/super49b")[1])["gpus"] == "not judged"
    with locked(folder / "lock", wait=False):
        found = check(capsys, folder, "--expect", "sft/super49b")[1]
    assert found["state"] == "running" and (verdicts(found)["gpus"], value(found, "gpus")) == ("pass", 84)


def test_a_link_to_itself_among_the_logs_is_passed_over(tmp_path: Path, capsys) -> None:
    (logs := tmp_path / "logs").mkdir()
    write_metrics(logs / "metrics.jsonl", [{"step": 1, "loss": 2.5}])
    (logs / "loop.log").symlink_to("loop.log")
    dispatch(["check", str(logs), "--expect", "sft/super49b"])
    assert "verdict:" in capsys.readouterr().out


def test_what_cannot_be_judged_yet_is_no_pass(tmp_path: Path, capsys) -> None:
    log = written(tmp_path / "driver.log", "▶ Setting up compute cluster...\n")
    code, found = check(capsys, log, "--expect", "sft/super49b")
    early = verdicts(found)
    assert early["started"] == early["final-loss"] == early["throughput"] == "not judged"
    assert early["no-oom"] == "not judged" and code == 1  # nothing tells whose log it is
    text = written(tmp_path / "empty.jsonl", "")
    expectation = tmp_path / "mine.yaml"
    rule = "{id: a, what: a, metric: loss, how: last, pass: {at_most: 1}, remedy: none}"
    expectation.write_text(f"title: mine\nwhen: {{}}\nexpectations: [{rule}]\n")
    code, found = check(capsys, text, "--expect", expectation)
    assert (code, found["verdict"]) == (1, "not judged")


def test_a_job_that_ended_before_its_first_step_failed(tmp_path: Path, capsys) -> None:
    folder = tmp_path / "9453356-logs"
    written(folder / "ray-driver.log", "▶ Setting up compute cluster...\n")
    assert verdicts(check(capsys, folder, "--expect", "sft/super49b")[1])["started"] == "not judged"
    written(folder / "ENDED", "")
    assert verdicts(check(capsys, folder, "--expect", "sft/super49b")[1])["started"] == "fail"
    (folder / "ENDED").unlink()
    written(folder / "ray-driver.log", "▶ Setting up compute cluster...\n", minutes=45)
    assert verdicts(check(capsys, folder, "--expect", "sft/super49b")[1])["started"] == "fail"


def test_grpo_of_super_49b_needs_the_kl_of_tensorboard(tmp_path: Path, capsys) -> None:
    steps = range(1, 11)
    log = written(
        tmp_path / "ray-driver.log", "".join(grpo_step(step, 0.3 + 0.02 * step, -0.01 * step) for step in steps)
    )
    code, found = check(capsys, log, "--expect", "rl/super49b")
    assert code == 0 and verdicts(found)["kl"] == "not judged"
    assert "exp_NNN" in next(one["why"] for one in found["judged"] if one["id"] == "kl")
    assert verdicts(found)["reward"] == verdicts(found)["policy-loss"] == verdicts(found)["step-time"] == "pass"
    for number, highest, verdict in ((1, 0.5, "pass"), (2, 14.0, "watch"), (3, 60.0, "fail")):
        folder = tmp_path / str(number) / "exp_001" / "tensorboard"
        write_events(folder, {"train/kl_penalty": {step: highest * step / 10 for step in steps}})
        code, found = check(capsys, log, folder, "--expect", "rl/super49b")
        assert verdicts(found)["kl"] == verdict and code == (verdict == "fail")
    falls = "".join(grpo_step(step, 0.5 - 0.03 * step, 0.01 * step, seconds=1900) for step in steps)
    found = check(capsys, written(tmp_path / "worse.log", falls), "--expect", "rl/super49b")[1]
    assert (verdicts(found)["reward"], verdicts(found)["policy-loss"]) == ("fail", "watch")
    assert verdicts(found)["step-time"] == "fail"


def nano_job(tmp_path: Path, bar: str, *, actors: int = 256, events_minutes: float = 1.0) -> tuple[Path, ...]:
    """The three places that the guide to Nano looks at: Ray's logs, Slurm's output, TensorBoard."""
    logs = tmp_path / "9453356-logs"
    written(logs / "STARTED_RAY_HEAD", "")
    step = f"\n{'=' * 25} Step 1/1000000 {'=' * 25}\n"
    written(logs / "ray-driver.log", step + bar)
    lines = [
        f"[INFO][2026-01-31T12:00:{at:02}+0000] Number of actors online: {at * actors // 8}/256\n" for at in range(9)
    ]
    out = written(tmp_path / "logs" / "slurm-9453356.out", "".join(lines))
    events = tmp_path / "logs" / "exp_001" / "tensorboard"
    write_events(events, {"train/loss": {1: 0.1}})
    for file in events.iterdir():
        written_at = time.time() - 60 * events_minutes
        os.utime(file, (written_at, written_at))
    return logs, out, tmp_path / "logs"


def test_the_checks_of_the_guide_to_nano(tmp_path: Path, capsys) -> None:
    job = nano_job(tmp_path, gym_bar([2040, 2048, 0, 428, 512]))
    code, found = check(capsys, *job, "--expect", "rl/nano3")
    expected = dict.fromkeys(("ray-head", "actors", "conversion", "no-oom", "rollouts", "started"), "pass")
    assert verdicts(found) == {**expected, "tensorboard": "pass", "log": "pass", "reward": "not judged"}
    # the last reading of the bar is still being written, so it goes from 0 to 428
    assert (code, value(found, "actors"), value(found, "rollouts")) == (0, 256, 428)
    job[1].write_text(job[1].read_text().replace("256/256", "255/256"))
    code, found = check(capsys, *job, "--expect", "rl/nano3")
    assert (code, verdicts(found)["actors"], value(found, "actors")) == (1, "fail", 255)


def test_how_far_the_rollouts_of_a_step_are_is_shown(tmp_path: Path, capsys) -> None:
    job = nano_job(tmp_path, gym_bar([0, 428, 540, 2048]))  # the last reading is still being written
    dispatch(["check", *map(str, job), "--expect", "rl/nano3"])
    said = capsys.readouterr().out
    assert re.search(r"^pass +rollouts +540 of 2,048 \(26 %\)", said, re.MULTILINE), said
    assert re.search(r"^pass +actors +256 of 256 \(100 %\)", said, re.MULTILINE), said


def test_the_lines_and_logs_of_our_own_launcher_are_known(tmp_path: Path, capsys) -> None:
    logs = tmp_path / "logs"
    lines = [f"12:00:0{at} Ray: {at * 8} of 32 nodes, {at * 64} of 256 GPUs, 4096 CPUs\n" for at in range(4)]
    written(logs / "driver.log", "".join(lines))
    found = check(capsys, logs, "--expect", "rl/nano3")[1]
    (head, actors) = (one for one in found["judged"] if one["id"] in ("ray-head", "actors"))
    assert (actors["verdict"], actors["value"]) == ("fail", 192)
    assert actors["remedy"].startswith("see worker-*.log of the nodes that are missing")
    written(logs / "ENDED", "")
    (head, *_) = check(capsys, logs, "--expect", "rl/nano3")[1]["judged"]
    assert (head["id"], head["verdict"]) == ("ray-head", "fail") and head["remedy"].startswith("see head.log in")
    written(logs / "driver.log", "Ray: 32 of 32 nodes, 256 of 256 GPUs, 4096 CPUs\n")
    assert verdicts(check(capsys, logs, "--expect", "rl/nano3")[1])["actors"] == "pass"


@pytest.mark.parametrize(
    ("name", "verdict", "changed"),
    [
        ("rollouts", "fail", {"bar": gym_bar([2048, 428, 428, 428, 428])}),
        ("rollouts", "not judged", {"bar": gym_bar([428, 428])}),
        ("actors", "fail", {"actors": 248}),
        ("tensorboard", "pass", {"events_minutes": 4}),
        ("tensorboard", "watch", {"events_minutes": 6}),
        ("tensorboard", "fail", {"events_minutes": 90}),
    ],
)
def test_troubles_of_nano(tmp_path: Path, capsys, name: str, verdict: str, changed: dict[str, Any]) -> None:
    job = nano_job(tmp_path, **{"bar": gym_bar([0, 428, 512]), **changed})
    assert verdicts(check(capsys, *job, "--expect", "rl/nano3")[1])[name] == verdict


def test_a_ray_head_that_never_started_is_missed_in_its_folder_only(tmp_path: Path, capsys) -> None:
    logs, *_ = nano_job(tmp_path, "")
    assert verdicts(check(capsys, logs, "--expect", "rl/nano3")[1])["ray-head"] == "pass"
    (logs / "STARTED_RAY_HEAD").unlink()
    assert verdicts(check(capsys, logs, "--expect", "rl/nano3")[1])["ray-head"] == "not judged"  # it may come yet
    assert verdicts(check(capsys, logs / "ray-driver.log", "--expect", "rl/nano3")[1])["ray-head"] == "not judged"
    written(logs / "ENDED", "")
    code, found = check(capsys, logs, "--expect", "rl/nano3")
    assert (code, verdicts(found)["ray-head"]) == (1, "fail")
    assert remedy(found, "ray-head").startswith("see ray-head.log in the same folder for errors of the")


def test_a_converted_model_that_other_nodes_do_not_see_is_explained(tmp_path: Path, capsys) -> None:
    job = nano_job(tmp_path, "FileNotFoundError: [Errno 2] No such file: '/ckpt/run_config.yaml'\n")
    found = check(capsys, *job, "--expect", "rl/nano3")[1]
    assert verdicts(found)["conversion"] == "fail"
    assert "in a cache that the other nodes do not see: set HF_HOME" in remedy(found, "conversion")


def test_automodels_output_and_records_are_read(tmp_path: Path, capsys) -> None:
    name = "sft/nano3_lora_automodel"
    log = written(tmp_path / "train_automodel_1.out", automodel_log(200, falling(1.4, 0.7, 200)))
    code, found = check(capsys, log, "--expect", name)
    assert code == 0 and found["read"] == ["Automodel"] and found["step"] == 200
    assert set(verdicts(found).values()) == {"pass"} and value(found, "trained-share") == 0.11
    folder = tmp_path / "results"
    entries = [
        {"step": at, "epoch": 0, "timestamp": "2026-08-10T15:41:00.000Z", "loss": 1.4 - at / 300} for at in range(200)
    ]
    write_metrics(folder / "training.jsonl", entries)
    write_metrics(folder / "validation.jsonl", [{"step": 199, "val_loss": 0.8, "timestamp": "2026-08-10T15:44:20Z"}])
    found = check(capsys, folder, "--expect", name)[1]
    assert verdicts(found)["loss"] == verdicts(found)["validation"] == verdicts(found)["finished"] == "pass"
    bad = written(tmp_path / "bad.out", "ChildFailedError: \n  exitcode  : 18 (pid: 1)\nNo module named 'mamba_ssm'\n")
    code, found = check(capsys, bad, "--expect", name)
    assert code == 1 and verdicts(found)["torchrun"] == verdicts(found)["mamba"] == "fail"


def test_a_run_of_ours_is_found_by_name_folder_and_artifact_name(home: Path, capsys) -> None:
    folder = tiny_run(home, [9.0 - 8.8 * step / 280 for step in range(280)])
    for wanted in ("super3-sft-model-aaaa", folder, "sft", "super3-sft-model"):
        code, found = check(capsys, wanted)
        assert (code, found["state"], found["kind"], found["step"]) == (0, "finished", "a run", 280)
        assert found["expectations"].endswith("stages/sft/config/expect/tiny.yaml")
    assert value(found, "step-time") == pytest.approx(0.1)


def test_data_is_refused_and_the_copy_of_a_run_is_known_by_its_config(home: Path, capsys) -> None:
    tiny_run(home, [9.0, 5.0], name="super3-sft-data-aaaa")
    for wanted in ("super3-sft-data-aaaa", "sft-data"):
        with pytest.raises(UserError, match="super3-sft-data is prepared data"):
            dispatch(["check", wanted])
    copy = tiny_run(home, [9.0, 5.0]).rename(home / "a-copy")
    assert check(capsys, copy)[1]["expectations"].endswith("stages/sft/config/expect/tiny.yaml")


def test_a_stopped_run_is_not_judged_by_its_end(home: Path, capsys) -> None:
    tiny_run(home, [9.0, 5.0, 3.0], finished=False)
    assert dispatch(["check", "sft"]) == 0
    said = capsys.readouterr().out
    assert "stopped" in said and "judged from step 280 on; this one ended at step 3" in said
    assert "step 3 of 280" in said


@pytest.mark.parametrize(("last", "verdict"), [(5.0, "pass"), (9.3, "fail")])
def test_a_run_of_other_data_or_length_is_judged_by_its_health(home: Path, capsys, last: float, verdict: str) -> None:
    folder = tiny_run(home, [9.0] * 6 + [last] * 6)
    (folder / "config.yaml").write_text(CONFIG.replace("synthetic", "mine.jsonl"))
    assert dispatch(["check", "sft"]) == (verdict == "fail")
    said = capsys.readouterr().out
    assert "expected: fine-tuning on your own rows, its health alone" in said
    assert re.search(rf"^{verdict} +loss +{'' if verdict == 'fail' else '-'}\d", said, re.MULTILINE)


@pytest.mark.parametrize(
    ("rewards", "verdict", "why"),
    [
        ([0.6] * 3 + [0.7] * 3 + [0.1] * 3, "fail", "a smaller optimizer.lr"),
        ([0.0] * 9, "fail", "reward was 0 at every step"),
        ([0.0] * 9, "fail", "start from a model that earns the reward"),
        ([1.0] * 9, "pass", ""),
    ],
)
def test_a_reward_that_fell_and_one_that_never_came_have_different_remedies(
    home: Path, capsys, rewards: list[float], verdict: str, why: str
) -> None:
    entries = [
        {"step": step, "reward": reward, "distinct_completions": 0.25 if step < 9 else 0.01}
        for step, reward in enumerate(rewards, 1)
    ]
    write_metrics(home / "metrics.jsonl", entries)
    _, found = check(capsys, home / "metrics.jsonl", "--expect", "rl/local")
    judged = {one["id"]: one for one in found["judged"]}
    assert judged["reward"]["verdict"] == verdict and why in f"{judged['reward']}"
    assert judged["distinct-answers"]["verdict"] == "pass", "a mean of eight steps"


def test_figures_that_ought_to_be_0_may_be_0_throughout(home: Path, capsys) -> None:
    write_metrics(home / "metrics.jsonl", [{"step": step, "truncated_fraction": 0.0} for step in range(1, 10)])
    expected = written(
        home / "mine.yaml",
        """
title: mine
when: {}
expectations:
  - {id: cut, what: answers that were cut, metric: truncated_fraction, how: change, pass: {at_most: 0.1}, remedy: a}
  - {id: up, what: the same, metric: truncated_fraction, how: change, pass: {at_least: 0.0, at_most: 1}, remedy: b}
""",
    )
    _, found = check(capsys, home / "metrics.jsonl", "--expect", expected)
    assert {one["id"]: one["verdict"] for one in found["judged"]} == {"cut": "pass", "up": "fail"}


@pytest.mark.parametrize(
    ("equal", "different", "verdicts"),
    [
        (0.79, 0.06, ("pass", "pass")),
        (0.81, 0.04, ("watch", "watch")),
        (1.0, 0.05, ("watch", "pass")),  # no fault where all rewards are full
    ],
)
def test_the_end_of_a_training_on_own_rows_is_judged(
    home: Path, capsys, equal: float, different: float, verdicts: tuple[str, str]
) -> None:
    figures = [(0.0, 1.0)] * 32 + [(equal, different)] * 8
    entries = [
        {"step": step, "reward": 1.0, "zero_advantage_fraction": zero, "distinct_completions": distinct}
        for step, (zero, distinct) in enumerate(figures, 1)
    ]
    write_metrics(home / "metrics.jsonl", entries)
    code, found = check(capsys, home / "metrics.jsonl", "--expect", "rl/local")
    judged = {one["id"]: one["verdict"] for one in found["judged"]}
    assert (judged["rewards-vary-still"], judged["distinct-answers"]) == verdicts
    assert code == 0


def test_a_difference_that_was_always_0_names_both_metrics(home: Path, capsys) -> None:
    expected = written(
        home / "mine.yaml",
        "title: t\nwhen: {}\nexpectations:\n- {id: apart, what: w, metric: loss, minus: valid_loss, how: change, "
        "pass: {at_least: 0.1}, remedy: r}\n",
    )
    write_metrics(home / "metrics.jsonl", [{"step": step, "loss": 2.0, "valid_loss": 2.0} for step in range(1, 7)])
    _, found = check(capsys, home / "metrics.jsonl", "--expect", str(expected))
    assert found["judged"][0]["why"] == "loss less valid_loss was 0 at every step"


def test_a_run_that_no_expectations_fit_says_what_differs(home: Path) -> None:
    folder = tiny_run(home, [9.0, 5.0])
    (folder / "config.yaml").write_text(CONFIG.replace("transformers", "automodel"))
    other = r"sft/local, is for other runs: engine\.name is automodel and not transformers"
    with pytest.raises(UserError, match=other) as caught:
        dispatch(["check", "sft"])
    assert "--expect sft/local" in str(caught.value.remedy)
    log = written(home / "some.log", "")
    with pytest.raises(UserError, match="which recipe") as caught:
        dispatch(["check", str(log)])
    assert "sft/super49b" in str(caught.value.remedy)
    with pytest.raises(UserError, match="no expectations named 'sft/super49'") as caught:
        dispatch(["check", str(log), "--expect", "sft/super49"])
    assert caught.value.remedy == "did you mean 'sft/super49b'?"


def test_watch_looks_again_until_the_run_is_over(home: Path, capsys, monkeypatch) -> None:
    log = written(home / "driver.log", sft_log(3, HEALTHY))
    looks = iter([10, 50])

    def another_part(seconds: float) -> None:
        assert seconds >= 5
        written(log, sft_log(next(looks), HEALTHY))

    monkeypatch.setattr("nemotron_app.check.command.time.sleep", another_part)
    assert dispatch(["check", str(log), "--expect", "sft/super49b", "--watch", "--every", "5", "--json"]) == 0
    documents = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [document["step"] for document in documents] == [3, 10, 50]
    assert [verdicts(document)["final-loss"] for document in documents] == ["not judged", "not judged", "pass"]


def test_a_damaged_log_is_noted(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tiny_run(home, [4.0, 3.0])
    with (folder / "metrics.jsonl").open("a") as log:
        log.write('{"step": 1, "loss": 4.0}\n')
    notes = check(capsys, folder.name)[1]["notes"]
    assert any("metrics.jsonl is damaged: line 4 has step 1 after step 2" in note for note in notes)


def test_an_edited_manifest_is_noted(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = publish(Store.open(), "super3-sft-model", "ModelArtifact").path / "manifest.json"
    file.write_text(file.read_text().replace("2.5", "0.1"))
    notes = check(capsys, "sft", "--expect", "sft/tiny")[1]["notes"]
    assert any("super3-sft-model:v1 is damaged: manifest.json: content changed" in note for note in notes)
