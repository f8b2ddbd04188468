"""What lm-eval logged of a benchmark, as our samples: our score of each row, and the harness's own metrics beside it.

{"id": 3, "question": ..., "expected": "18", "output": ..., "strict": 1.0, "lenient": 1.0,
 "harness": {"exact_match,strict-match": 0.0, "exact_match,flexible-extract": 1.0}}
"""

import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from statistics import fmean
from typing import Any

from nemotron_data.chat.thought import after_thought
from nemotron_data.formats.eval_tasks import EvalTask
from nemotron_shared.errors import UserError
from nemotron_shared.runtime.process import end_group
from stages.eval.harness_tasks import chosen, judged, written

SECONDS = 10
# Set in the program's own process: this one has threads, and must not run anything between fork and exec.
BEGINNING = """
import resource, sys
resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
exec(compile(sys.stdin.read(), "program", "exec"), {"__name__": "__main__"})
"""


def read_benchmark(about: EvalTask, logged: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Samples in the order of the task's rows; lm-eval logs one for each row and filter."""
    rows: dict[int, list[Mapping[str, Any]]] = {}
    for sample in logged:
        # of the fields of MMLU each is a task of its own
        rows.setdefault(sample["doc"].get("row", sample["doc_id"]), []).append(sample)
    return [{"id": number, **_sample(about, rows[number])} for number in sorted(rows)]


def _sample(about: EvalTask, entries: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    first, doc = entries[0], entries[0]["doc"]
    harness = {
        metric if entry["filter"] == "none" else f"{metric},{entry['filter']}": entry[metric]
        for entry in entries
        for metric in entry["metrics"]
    }
    if about.kind == "choice":
        return {"question": doc["question"], **chosen(first), "harness": harness}
    if about.kind == "generate":
        return {"question": doc["question"], **judged(first), "harness": harness}
    outputs = first["resps"][0]
    answers = [after_thought(output) or "" for output in outputs]
    if about.kind == "code":
        score = fmean(_passes_tests(doc, answer) for answer in answers)
        asked = {"question": doc["prompt"], "expected": f"passes the tests of {doc['entry_point']}"}
        return {**asked, **written(outputs), "score": score}
    score = fmean(follows(doc, answer) for answer in answers)
    asked = {"question": doc["prompt"], "expected": ", ".join(doc["instruction_id_list"])}
    return {**asked, **written(outputs), "score": score, "harness": harness}


def _passes_tests(doc: Mapping[str, Any], answer: str) -> bool:
    return passes("\n".join([doc["prompt"] + answer, doc["test"], f"check({doc['entry_point']})"]))


def follows(doc: Mapping[str, Any], answer: str) -> bool:
    """Whether an answer follows every instruction of its prompt, as lm-eval judges it strictly."""
    from lm_eval.tasks.ifeval.utils import process_results

    return bool(process_results(doc, [answer])["prompt_level_strict_acc"])


def judgeable(row: dict[str, Any], file: Path) -> dict[str, Any]:
    """A prompt of IFEval that its checks can judge, tried before any is asked. They take some words for regular
    expressions; one that is none is meant as it stands.

    Raises:
        UserError: they cannot.
    """
    told = [{key: _pattern(value) for key, value in kwargs.items()} for kwargs in row["kwargs"]]
    for kwargs in (row["kwargs"], told):
        try:
            follows(row | {"kwargs": kwargs}, "An answer.")
        except Exception as error:  # whatever a check of lm-eval's ends with
            reason = f"{type(error).__name__}: {error}"
        else:
            return row | {"kwargs": kwargs}
    what = f"{file}: row {row['row'] + 1}: no check of lm-eval's can judge it: {reason}"
    raise UserError(what, "correct instruction_id_list and kwargs of this prompt, or leave it out")


def _pattern(value: Any) -> Any:
    """A word, or a list of them, as a regular expression."""
    if isinstance(value, list):
        return [_pattern(one) for one in value]
    return re.escape(value) if isinstance(value, str) and not _is_pattern(value) else value


def _is_pattern(text: str) -> bool:
    try:
        re.compile(text)
    except re.error:
        return False
    return True


def passes(program: str) -> bool:
    """Whether a Python program ends well, in a process with little memory, time and environment.

    This keeps accidents small. It is no sandbox: the program has the rights of whoever runs the evaluation.
    """
    with tempfile.TemporaryDirectory() as folder:
        process = subprocess.Popen(
            [sys.executable, "-I", "-c", BEGINNING],
            cwd=folder, env={}, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            start_new_session=True,
        )  # fmt: skip
        try:
            with suppress(subprocess.TimeoutExpired):
                process.communicate(program.encode(), SECONDS)
            return process.poll() == 0
        finally:
            end_group(process)


def mean_of(values: Iterable[Any]) -> float:
    """Mean of a harness's metric, which may give several values for one row."""
    flat = [float(one) for value in values for one in (value if isinstance(value, list | tuple) else [value])]
    return sum(flat) / len(flat)
