"""Run `nemo-evaluator run_eval` in its own environment, and read its output.

    program = find_program("nemo-evaluator", "/opt/evaluator/bin/nemo-evaluator", "engine.evaluator")
    run_eval(program, config, folder, run, environment)   # .../results.yml, samples_<task>_<time>.jsonl
    read_samples(folder / "output", "sums", "generate", rows=200)

Its exit code is ignored: a run succeeded if its results exist, are complete and agree with the samples.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from nemotron_data.formats.eval_tasks import Kind
from nemotron_shared.machine.environments import environment_of
from nemotron_shared.machine.library_output import program_output
from nemotron_shared.machine.machine import Machine
from nemotron_shared.system.atomic import write_text
from nemotron_shared.system.errors import Finding, UserError, problem
from nemotron_shared.system.process import end_group, ending_with_us
from nemotron_shared.tracking.run import Run
from stages.eval.harness_tasks import read_sample
from stages.eval.scoring import METRICS, score

TESTED_VERSIONS = {"nemo-evaluator": "0.2.8", "nvidia-lm-eval": "26.3"}
HOW_TO_INSTALL = "nemotron engine install nemo_evaluator"


@dataclass(frozen=True)
class Program:
    """A console program of another environment, which needs that environment's programs on its PATH."""

    path: Path

    def environment(self, telemetry: bool) -> dict[str, str]:
        """This process's environment without the variables that would lead Python back to our packages."""
        ours = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")
        kept = {key: value for key, value in os.environ.items() if key not in ours}
        kept["PATH"] = f"{self.path.parent}{os.pathsep}{kept.get('PATH', '')}"
        return kept | ({} if telemetry else {"NEMO_EVALUATOR_TELEMETRY_LEVEL": "0"})


def find_program(name: str, configured: str | None, key: str) -> Program:
    """The configured program, else the one next to this Python, else that of its installed environment.

    Raises:
        UserError: the program does not exist.
    """
    path = Path(configured).expanduser() if configured else Path(sys.executable).parent / name
    environment = environment_of("nemo_evaluator")
    if not configured and not path.is_file() and environment and environment.programs:
        path = environment.programs / name
    if not path.is_file() or not os.access(path, os.X_OK):
        raise UserError(f"{key}: program {path} not found", HOW_TO_INSTALL)
    return Program(path.absolute())


def require_versions(program: Program, wanted: Mapping[str, str]) -> None:
    """Refuse untested versions, because the harness's output format changes between versions.

    Raises:
        UserError: a package is missing or has another version.
    """
    code = (
        "import importlib.metadata as m, json, sys\n"
        "found = {d.metadata['Name'].lower().replace('_', '-'): d.version for d in m.distributions()}\n"
        "print(json.dumps({name: found.get(name) for name in sys.argv[1:]}))"
    )
    python = program.path.parent / "python"
    if not python.exists():
        raise UserError(f"no Python found next to {program.path}", HOW_TO_INSTALL)
    command = [str(python), "-c", code, *wanted]
    answer = subprocess.run(command, env=program.environment(False), capture_output=True, text=True, check=False)
    if answer.returncode:
        raise UserError(f"{python} cannot run: {answer.stderr.strip()[-300:]}", HOW_TO_INSTALL)
    for name, found in json.loads(answer.stdout).items():
        if found != wanted[name]:
            raise UserError(
                f"{program.path.parent}: {name} {found or 'is missing'}, and this engine is made for {wanted[name]}",
                HOW_TO_INSTALL,
            )


def program_problems(
    machine: Machine, name: str, configured: str | None, key: str, wanted: Mapping[str, str]
) -> Iterator[Finding]:
    """Problems with a program of another environment; a described machine lists its versions."""
    try:
        if machine.is_here:
            require_versions(find_program(name, configured, key), wanted)
    except UserError as error:
        yield problem(error.message, error.remedy)
    for package, version in () if machine.is_here or not machine.knows_packages else wanted.items():
        if (found := machine.version_of(package)) != version:
            yield problem(f"{package} {found or 'is missing'}, and this engine is made for {version}", HOW_TO_INSTALL)


def run_eval(program: Program, config: dict[str, Any], folder: Path, run: Run, environment: Mapping[str, str]) -> None:
    """Run one evaluation to its end; its output goes to `folder`/log.txt.

    Raises:
        Stopped: a signal asked this run to stop; the evaluation was ended.
        UserError: the evaluation left no results.
    """
    folder.mkdir(parents=True, exist_ok=True)
    file, log = folder / "run_config.yaml", folder / "log.txt"
    write_text(file, yaml.safe_dump(config, sort_keys=False, allow_unicode=True))
    log.unlink(missing_ok=True)
    with program_output(log) as out:
        command = ending_with_us([str(program.path), "run_eval", "--run_config", str(file)], group=True)
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=dict(environment), start_new_session=True
        )
        try:
            while process.poll() is None:
                run.stop_if_requested()
                with suppress(subprocess.TimeoutExpired):
                    process.wait(0.5)
        finally:
            end_group(process)
    if not (Path(config["config"]["output_dir"]) / "results.yml").is_file():
        end = "\n".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-15:])
        raise UserError(f"nemo-evaluator left no results (exit code {process.returncode})\n{end}", f"see {log}")


def read_samples(folder: Path, name: str, kind: Kind, rows: int) -> list[dict[str, Any]]:
    """Samples of one task, in the order of its rows.

    Raises:
        UserError: they are missing or incomplete, or disagree with the harness's own score.
    """
    files = sorted(folder.rglob(f"samples_{name}_*.jsonl"))
    if len(files) != 1:
        raise UserError(
            f"{folder}: {len(files)} files of samples of '{name}', expected one", f"see {folder.parent / 'log.txt'}"
        )
    with files[0].open(encoding="utf-8", newline="\n") as lines:  # texts may contain other line separators
        samples = sorted((read_sample(kind, json.loads(line)) for line in lines), key=lambda sample: sample["id"])
    if [sample["id"] for sample in samples] != list(range(rows)):
        raise UserError(f"{files[0]}: {len(samples)} samples for {rows} rows", f"see {folder.parent / 'log.txt'}")
    results = folder / "results.yml"
    metric = "exact_match" if kind == "generate" else METRICS[kind]
    reported = reported_results(results).get(name, {})
    ours = score(kind, [{"score": sample.get(metric), **sample} for sample in samples])["value"]
    theirs = next((entry["value"] for label, entry in reported.items() if label.startswith(metric)), None)
    if theirs is None or abs(theirs - ours) > 1e-6:
        what = f"{results}: the score of '{name}' is {theirs}, but its samples give {ours}"
        raise UserError(what, "results and samples come from different runs: evaluate again with --force")
    return samples


def reported_results(results: Path, level: str = "tasks") -> dict[str, dict[str, dict[str, Any]]]:
    """`{"sums": {"exact_match__final": {"value": 0.93, "stats": {"stderr": 0.01}}}}` of a results.yml.

    Args:
        level: `tasks`, or `groups` for the totals over the parts of a benchmark.

    Raises:
        UserError: the file is not a results file.
    """
    content = yaml.safe_load(results.read_text(encoding="utf-8"))
    try:
        found = content["results"].get(level) or {}
        return {
            name: {label: entry for metric in about["metrics"].values() for label, entry in metric["scores"].items()}
            for name, about in found.items()
        }
    except (KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{results}: not results of NeMo Evaluator ({error!r})") from error
