"""Public benchmarks by name, run the way lm-eval runs them: `data_prep.benchmarks.gsm8k=/data/gsm8k`.

    gsm8k      school mathematics      5 examples before each question    share of right answers
    mmlu       questions of 57 fields  5 examples of the same field       share of right choices
    ifeval     instructions            none                               share of prompts followed
    humaneval  Python functions        none                               share of functions that pass their tests

Their rows are treated like any other data: prepared once, searched for in the training data, and run offline. Prompts,
examples and filters are lm-eval's own, and its metrics are reported next to our score as `harness`. The `evaluation`
section sets the length of answers and whether they are sampled, as it does for every task.
"""

import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from itertools import islice
from pathlib import Path, PurePosixPath
from statistics import fmean
from typing import Any

import yaml

from nemotron_data.chat.thought import after_thought
from nemotron_data.formats.eval_tasks import EvalTask, Kind, read_task_rows
from nemotron_data.formats.json_lines import read_lines, write_lines
from nemotron_data.rejects import Refused
from nemotron_data.sources.datasets import read_question
from nemotron_data.sources.files import expand
from nemotron_data.sources.input_file import FORMATS, InputFile, identity
from nemotron_data.sources.listing import local_paths
from nemotron_data.sources.reading import BadRow, read_files
from nemotron_shared.artifacts import Source
from nemotron_shared.system.atomic import write_text
from nemotron_shared.system.errors import Finding, UserError, problem
from nemotron_shared.system.process import end_group
from stages.eval.harness_tasks import FINAL_ANSWER, chosen, generation, judged, written
from stages.eval.schema import EvalConfig, EvaluationSection

LM_EVALS_LENGTH = 256
"""Answer length, in tokens, for lm-eval definitions that set none."""
TAKE_FIRST = {"function": "take_first"}
HUB, SHOTS = "hub", 5
Rows = list[dict[str, Any]]


@dataclass(frozen=True)
class Benchmark:
    """Source and format of a benchmark's rows.

    Attributes:
        repository: on the hub, with its configuration; a local copy has the same folders.
        test: split that the questions come from.
        shots: split that the few-shot examples come from.
        fields: fields that a row must have.
        folder: folder among lm-eval's tasks that holds the definition.
    """

    kind: Kind
    repository: str
    subset: str | None
    test: str
    shots: str | None
    fields: tuple[str, ...]
    folder: str
    convert: Callable[[dict[str, Any]], dict[str, Any]]


def _gsm8k(row: dict[str, Any]) -> dict[str, Any]:
    question, expected = read_question(row, "question", "answer", "#### (.+)")
    return {"expected": expected.replace(",", ""), "key": question}


def _mmlu(row: dict[str, Any]) -> dict[str, Any]:
    known = _fields_there()
    if known and row["subject"] not in known:
        remedy = "leave the row out: lm-eval has the fields of cais/mmlu alone; a package may add a task of your own"
        raise Refused("no field of MMLU", f"its subject is '{row['subject']}'", f"{remedy} (CONTRIBUTING.md)")
    return {"stem": "", "key": row["question"]}


@cache
def _fields_there() -> frozenset[str]:
    """Fields that lm-eval has definitions of, if it is installed; it is not imported, which takes seconds."""
    spec = find_spec("lm_eval")
    there = (
        [] if spec is None or spec.origin is None else Path(spec.origin).parent.glob("tasks/mmlu/default/mmlu_*.yaml")
    )
    return frozenset(file.stem.removeprefix("mmlu_") for file in there)


BENCHMARKS = {
    "gsm8k": Benchmark(
        "generate", "openai/gsm8k", "main", "test", "train", ("question", "answer"), "gsm8k", _gsm8k
    ),
    "mmlu": Benchmark(
        "choice", "cais/mmlu", "all", "test", "dev", ("question", "choices", "answer", "subject"), "mmlu/default",
        _mmlu,
    ),
    "ifeval": Benchmark(
        "instructions", "google/IFEval", None, "train", None, ("prompt", "instruction_id_list", "kwargs"), "ifeval",
        lambda row: {"key": row["prompt"]},
    ),
    "humaneval": Benchmark(
        "code", "openai/openai_humaneval", "openai_humaneval", "test", None, ("prompt", "test", "entry_point"),
        "humaneval", lambda row: {"key": row["prompt"]},
    ),
}  # fmt: skip


def sources(benchmarks: Mapping[str, str]) -> list[Source]:
    """Manifest entries for every file that we read.

    Raises:
        UserError: data is missing.
    """
    files = (
        file for name, place in benchmarks.items() for split in _splits(name) for file in _files(name, place, split)
    )
    return [Source(file.path, *identity(file)) for file in files]


def prepare_benchmark(name: str, place: str, output: Path) -> tuple[Kind, Rows]:
    """Return the benchmark's questions, and write its few-shot examples to `output`.

    Raises:
        UserError: a row lacks a field; the message gives file and row.
    """
    about = BENCHMARKS[name]
    rows = list(_rows(name, _files(name, place, about.test)))
    if about.shots:
        examples = list(_rows(name, _files(name, place, about.shots)))
        there = Counter(row.get("subject") for row in examples)  # MMLU takes them from the question's own field
        for field in {row.get("subject") for row in rows}:
            if there[field] < SHOTS:
                of = f" of the field '{field}'" if field else ""
                what = f"{place}: {there[field]} example rows{of}, but lm-eval shows {SHOTS} with each question"
                raise UserError(f"data_prep.benchmarks.{name}: {what}", f"download all of its split '{about.shots}'")
        write_lines(shots_file(output, name), examples)
    return about.kind, rows


def shots_file(folder: Path, name: str) -> Path:
    """Path of a task's few-shot examples, next to its rows."""
    return folder / f"{name}.examples.jsonl"


def _splits(name: str) -> list[str]:
    return [split for split in (BENCHMARKS[name].test, BENCHMARKS[name].shots) if split]


def _files(name: str, place: str, split: str) -> list[InputFile]:
    """The files of one split: from the hub, or the files of a folder whose names start with the split."""
    about = BENCHMARKS[name]
    if place == HUB or place.startswith("hf://"):
        repository = f"hf://{about.repository}" if place == HUB else place
        return expand([repository], subset=about.subset, split=split)
    bring = f"hf download --repo-type dataset {about.repository} --local-dir {place}"
    if not Path(place).expanduser().exists():
        raise UserError(f"data_prep.benchmarks.{name}: folder {place} not found", f"download the data: {bring}")
    there = local_paths(Path(place).expanduser())
    files = expand([path for path in there if path.name.lower().endswith(tuple(FORMATS))])  # not its LICENSE
    inside = [file for file in files if about.subset in PurePosixPath(file.path).parts[:-1]] or files
    found = [file for file in inside if PurePosixPath(file.path).name.startswith(split)]
    if not found and len(inside) == 1 and len(_splits(name)) == 1:
        found = inside
    if not found:
        what = f"data_prep.benchmarks.{name}: {place} has no file whose name starts with '{split}'"
        raise UserError(what, f"download the data again: {bring}")
    return found


def _rows(name: str, files: Sequence[InputFile]) -> Iterator[dict[str, Any]]:
    about = BENCHMARKS[name]
    for row in read_files(files):
        place = f"{row.file}:{row.line}"
        if isinstance(row, BadRow):
            raise UserError(f"{place}: {row.why.reason}", "fetch the file again")
        if missing := [field for field in about.fields if row.value.get(field) is None]:
            what = f"{place}: no field '{missing[0]}', which {name} needs"
            raise UserError(what, f"fields here: {', '.join(row.value)}")
        try:
            yield row.value | about.convert(row.value)
        except Refused as refused:
            raise UserError(f"{place}: {refused.reason}: {refused.detail}", refused.finding.remedy) from refused


def benchmark_problems(config: EvalConfig, asked: Sequence[str]) -> Iterator[Finding]:
    """Problems with the chosen benchmarks: wrong engine, generated code not allowed, or missing library data."""
    others = " ".join(f"-t {name}" for name in asked if name not in BENCHMARKS) or "-t with other tasks"
    for name in (name for name in asked if name in BENCHMARKS):
        kind = BENCHMARKS[name].kind
        if config.engine.name != "lm_eval":
            yield problem(f"'{name}' needs engine=lm_eval", f"set engine=lm_eval, or leave the task out: {others}")
        if kind == "code" and not config.evaluation.run_generated_code:
            what = f"'{name}' runs programs that the model wrote, with your rights, on this machine"
            allow = "to allow this, set evaluation.run_generated_code=true; or leave the task out: "
            yield problem(what, allow + others, "evaluation.run_generated_code")
        if kind == "instructions" and not _has_punkt():
            what = f"'{name}' counts sentences with NLTK's punkt data, which is not on this machine"
            yield problem(what, "python -m nltk.downloader punkt_tab")


def _has_punkt() -> bool:
    import nltk

    try:
        nltk.data.find("tokenizers/punkt_tab")
    except LookupError:
        return False
    return True


def definitions(about: EvalTask, folder: Path, settings: EvaluationSection) -> list[Path]:
    """Write lm-eval's own definition of a benchmark over the prepared rows to `folder`; for MMLU, one per field.

    Our config sets answer length and sampling. lm-eval's filters see only the text after the thinking.
    """
    place = _folder(about.name)
    rows = islice(read_task_rows(about.file, about.kind), settings.limit)
    numbered = [row | {"row": number} for number, row in enumerate(rows)]
    if about.name == "mmlu":
        return list(_fields_of_mmlu(about, folder, place, numbered))
    if about.kind == "instructions":
        numbered = [judgeable(row, about.file) for row in numbered]
    files = {"test": folder / f"{about.name}.test.jsonl"}
    write_lines(files["test"], numbered)
    if (examples := shots_file(about.file.parent, about.name)).is_file():
        files["examples"] = examples
    own = _definition_of(about.name)
    base: dict[str, Any] = {"include": str(place / f"{about.name}.yaml")}
    base["filter_list"] = own.get("filter_list") or [{"name": "none", "filter": [TAKE_FIRST]}]
    if about.kind == "code":  # its definition loads a metric from the hub, and we run the tests ourselves
        base = {"doc_to_text": own["doc_to_text"], "filter_list": [{"name": "none", "filter": [TAKE_FIRST]}]}
        base |= {"output_type": "generate_until", "doc_to_target": "", "metric_list": [{"metric": "exact_match"}]}
    base["filter_list"] = [one | {"filter": [FINAL_ANSWER, *one["filter"]]} for one in base["filter_list"]]
    base["generation_kwargs"] = generation(settings, own["generation_kwargs"]["until"])
    base["repeats"] = settings.num_samples
    return [_definition(about.name, base, folder, files)]


def overruled(name: str, settings: EvaluationSection) -> str | None:
    """A notice for answers whose longest length differs from that in lm-eval's definition, else None."""
    own = _definition_of(name)
    if own["output_type"] != "generate_until":
        return None
    length = own["generation_kwargs"].get("max_gen_toks", LM_EVALS_LENGTH)
    if length == settings.max_new_tokens:
        return None
    return f"{name}: answers of up to {settings.max_new_tokens:,} tokens (lm-eval's own definition: {length:,})"


def _folder(name: str) -> Path:
    """Folder of lm-eval's definition of a benchmark."""
    import lm_eval.tasks

    return Path(lm_eval.tasks.__file__).parent / BENCHMARKS[name].folder


def _definition_of(name: str) -> dict[str, Any]:
    file = _folder(name) / ("_default_template_yaml" if name == "mmlu" else f"{name}.yaml")
    return yaml.safe_load(file.read_text(encoding="utf-8").replace("!function ", ""))


def _definition(name: str, base: dict[str, Any], folder: Path, files: dict[str, Path]) -> Path:
    """Write one YAML file for a file of rows and, if given, a file of examples."""
    written = base | {
        "task": name,
        "dataset_path": "json",
        "dataset_name": None,
        "dataset_kwargs": {"data_files": {split: str(file.resolve()) for split, file in files.items()}},
        "test_split": "test",
        "training_split": None,
        "fewshot_split": "examples" if "examples" in files else None,
    }
    path = folder / f"{name}.yaml"
    write_text(path, yaml.safe_dump(written, sort_keys=False, allow_unicode=True))
    return path


def _fields_of_mmlu(about: EvalTask, folder: Path, place: Path, rows: Rows) -> Iterator[Path]:
    """One task per field, because examples come from the question's field."""
    examples = list(_values(shots_file(about.file.parent, about.name)))
    for subject in dict.fromkeys(row["subject"] for row in rows):
        name = f"mmlu_{subject}"
        if not (place / f"{name}.yaml").is_file():
            raise UserError(f"{about.file}: unknown MMLU field '{subject}'", "leave its rows out")
        files = {}
        for split, every in (("test", rows), ("examples", examples)):
            files[split] = folder / f"{name}.{split}.jsonl"
            write_lines(files[split], [row for row in every if row["subject"] == subject])
        yield _definition(name, {"include": str(place / f"{name}.yaml"), "num_fewshot": SHOTS}, folder, files)


def _values(file: Path) -> Iterator[dict[str, Any]]:
    return (line.value() for line in read_lines(file))


SECONDS = 10
# Limits are set inside the child: this process has threads, so it must not run anything between fork and exec.
BEGINNING = """
import resource, sys
resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
exec(compile(sys.stdin.read(), "program", "exec"), {"__name__": "__main__"})
"""


def read_benchmark(about: EvalTask, logged: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Samples in the order of the task's rows; lm-eval logs one per row and filter."""
    rows: dict[int, list[Mapping[str, Any]]] = {}
    for sample in logged:
        # each MMLU field is a separate task
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
    """Whether an answer follows every instruction of its prompt by lm-eval's strict check."""
    from lm_eval.tasks.ifeval.utils import process_results

    return bool(process_results(doc, [answer])["prompt_level_strict_acc"])


def judgeable(row: dict[str, Any], file: Path) -> dict[str, Any]:
    """Return an IFEval prompt that lm-eval's checks can judge; called before the model is run.

    The checks read some keywords as regular expressions; a keyword that is not a valid one is escaped.

    Raises:
        UserError: the checks fail on this prompt.
    """
    told = [{key: _pattern(value) for key, value in kwargs.items()} for kwargs in row["kwargs"]]
    for kwargs in (row["kwargs"], told):
        try:
            follows(row | {"kwargs": kwargs}, "An answer.")
        except Exception as error:  # lm-eval's checks may raise anything
            reason = f"{type(error).__name__}: {error}"
        else:
            return row | {"kwargs": kwargs}
    what = f"{file}: row {row['row'] + 1}: lm-eval cannot judge this prompt: {reason}"
    raise UserError(what, "correct its instruction_id_list and kwargs, or leave the row out")


def _pattern(value: Any) -> Any:
    """Escape keywords that are not valid regular expressions."""
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
    """Whether a Python program exits with 0, in a process with limited memory, time and environment.

    The limits contain accidents. This is not a sandbox: the program runs with the user's rights.
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
