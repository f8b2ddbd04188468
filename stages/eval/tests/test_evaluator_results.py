"""Results count if they exist, are complete and agree with the samples; the exit code is ignored."""

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from evaluator_support import program

from nemotron_shared.system.errors import UserError
from nemotron_shared.system.stop import Stopped
from nemotron_shared.tracking.run import Run
from stages.eval.engines.nemo_evaluator_launcher.launcher import benchmark_score
from stages.eval.harness import Program, find_program, read_samples, require_versions, run_eval


def results_file(folder: Path, name: str, metric: str, value: float, **stats: float) -> None:
    scores = {metric: {"scores": {metric: {"value": value, "stats": stats}}}}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "results.yml").write_text(yaml.safe_dump({"results": {"tasks": {name: {"metrics": scores}}}}))


def choice_samples(folder: Path, scores: list[float]) -> None:
    """As the harness writes them: numbers of responses are text, and the order is its own."""
    rows = [
        {
            "doc_id": number,
            "doc": {"question": "Where?", "choices": ["Oster", "Kelby"], "answer": 0},
            "filtered_resps": [["-1.5", "False"], ["-0.5" if score == 0 else "-9.25", "False"]],
            "acc": score,
        }
        for number, score in enumerate(scores)
    ]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "samples_facts_2026.jsonl").write_text("".join(json.dumps(row) + "\n" for row in reversed(rows)))


def test_samples_come_back_in_the_order_of_the_rows(tmp_path: Path) -> None:
    choice_samples(tmp_path / "model", [1.0, 0.0, 1.0, 1.0])
    results_file(tmp_path, "facts", "acc", 0.75)
    samples = read_samples(tmp_path, "facts", "choice", rows=4)
    assert [sample["score"] for sample in samples] == [1.0, 0.0, 1.0, 1.0]
    assert [sample["output"] for sample in samples] == ["Oster", "Kelby", "Oster", "Oster"]
    assert samples[0]["log_likelihoods"] == [-1.5, -9.25]


def test_incomplete_samples_are_refused(tmp_path: Path) -> None:
    choice_samples(tmp_path / "model", [1.0, 0.0])
    results_file(tmp_path, "facts", "acc", 0.5)
    with pytest.raises(UserError, match="2 samples for 3 rows"):
        read_samples(tmp_path, "facts", "choice", rows=3)
    with pytest.raises(UserError, match="0 files of samples of 'sums'"):
        read_samples(tmp_path, "sums", "generate", rows=3)


def test_a_score_that_its_samples_do_not_have_is_refused(tmp_path: Path) -> None:
    choice_samples(tmp_path / "model", [1.0, 0.0])
    results_file(tmp_path, "facts", "acc", 0.75)
    with pytest.raises(UserError, match=r"is 0\.75, but its samples give 0\.5"):
        read_samples(tmp_path, "facts", "choice", rows=2)


@pytest.mark.parametrize("content", ["", "- 1", "results: 3", "results: {tasks: {facts: 1}}"])
def test_what_is_no_results_file_is_refused(tmp_path: Path, content: str) -> None:
    choice_samples(tmp_path / "model", [1.0])
    (tmp_path / "results.yml").write_text(content)
    with pytest.raises(UserError, match="not results of NeMo Evaluator"):
        read_samples(tmp_path, "facts", "choice", rows=1)


def config(tmp_path: Path) -> dict[str, Any]:
    return {"config": {"output_dir": str(tmp_path / "output")}}


def test_an_exit_code_of_zero_without_results_is_a_failure(tmp_path: Path) -> None:
    path = program(tmp_path / "bin" / "nemo-evaluator", "#!/bin/sh\necho no tokenizer found >&2\nexit 0\n")
    with pytest.raises(UserError, match=r"left no results \(exit code 0\)\nno tokenizer found"):
        run_eval(Program(path), config(tmp_path), tmp_path / "work", Run(tmp_path, "eval"), os.environ)


def test_a_stop_ends_the_evaluation_and_what_it_started(tmp_path: Path) -> None:
    script = f"#!/bin/sh\nsleep 600 &\necho $! > {tmp_path}/child\nwait\n"
    path, run = program(tmp_path / "bin" / "nemo-evaluator", script), Run(tmp_path, "eval")

    class StopsOnceStarted(Run):
        @property
        def stop_requested(self) -> bool:
            return (tmp_path / "child").is_file() and (tmp_path / "child").read_text().strip() != ""

        @stop_requested.setter
        def stop_requested(self, value: bool) -> None:
            assert value is False

    run = StopsOnceStarted(tmp_path, "eval")
    with pytest.raises(Stopped):
        run_eval(Program(path), config(tmp_path), tmp_path / "work", run, os.environ)
    child = int((tmp_path / "child").read_text())
    wait_until(lambda: has_ended(child))


def has_ended(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().split()[2] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def wait_until(holds: Callable[[], bool], seconds: float = 300) -> None:
    """A signalled process takes a moment to die."""
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, f"not within {seconds} s"
        time.sleep(0.01)


def test_the_program_gets_its_own_environment_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "/elsewhere")
    found = find_program("nemo-evaluator", str(program(tmp_path / "bin" / "nemo-evaluator", "#!/bin/sh\n")), "key")
    environment = found.environment(telemetry=False)
    assert environment["PATH"].split(os.pathsep)[0] == str(tmp_path / "bin")
    assert environment["NEMO_EVALUATOR_TELEMETRY_LEVEL"] == "0"
    assert "PYTHONPATH" not in environment
    monkeypatch.delenv("NEMO_EVALUATOR_TELEMETRY_LEVEL", raising=False)
    assert "NEMO_EVALUATOR_TELEMETRY_LEVEL" not in found.environment(telemetry=True)


def test_a_missing_program_says_how_to_get_it(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"engine\.evaluator: program .* not found") as caught:
        find_program("nemo-evaluator", str(tmp_path / "nothing"), "engine.evaluator")
    assert "nemotron engine install nemo_evaluator" in str(caught.value)


def test_another_version_is_refused(tmp_path: Path) -> None:
    path = program(tmp_path / "bin" / "nemo-evaluator", "#!/bin/sh\n")
    program(tmp_path / "bin" / "python", '#!/bin/sh\necho \'{"nemo-evaluator": "0.9.0"}\'\n')
    with pytest.raises(UserError, match=r"nemo-evaluator 0\.9\.0, and this engine is made for 0\.2\.8"):
        require_versions(Program(path), {"nemo-evaluator": "0.2.8"})


def test_a_benchmark_has_a_score_with_its_interval(tmp_path: Path) -> None:
    results_file(tmp_path, "hellaswag", "acc_norm", 0.8, stderr=0.01)
    (tmp_path / "results_2026.json").write_text(json.dumps({"n-samples": {"hellaswag": {"effective": 1600}}}))
    found = benchmark_score("hellaswag", tmp_path)
    assert (found["metric"], found["value"], found["n"]) == ("acc_norm", 0.8, 1600)
    assert found["ci95"] == pytest.approx([0.7804, 0.8196], abs=1e-4)


def test_a_benchmark_without_any_measure_of_doubt_is_refused(tmp_path: Path) -> None:
    results_file(tmp_path, "hellaswag", "acc_norm", 0.8)
    with pytest.raises(UserError, match="neither a standard error nor a number of rows"):
        benchmark_score("hellaswag", tmp_path)
