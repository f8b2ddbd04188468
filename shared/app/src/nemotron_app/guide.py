"""Help for the steps of a model: `nemotron super3 sft --help`, `nemotron sft --help`, `nemotron pipeline --help`."""

import ast
from collections.abc import Iterator, Sequence

from nemotron_app.table import options, usage
from nemotron_shared.artifacts.names import DEFAULT_FAMILY
from nemotron_shared.families import families
from nemotron_shared.stages import STAGES

EXAMPLES = {
    "pretrain": (
        ("pretrain -c tiny", "a real model of 0.3M parameters, on this CPU"),
        ("pretrain -c local data_prep.source='texts/*.txt'", "your own text, on this machine"),
        ("pretrain -c tiny train.train_iters=900", "longer: it continues from the 450 steps that are there"),
    ),
    "sft": (
        ("sft -c tiny", "teach the tiny model to chat"),
        ("sft -c local run.model=./model data_prep.source=chats.jsonl", "your own model and chats"),
        ("sft -c tiny optimizer.lr=1e-3 --force", "another setting; --force makes again what is there"),
    ),
    "rl": (
        ("rl -c tiny", "reinforce the tiny model on sums that can be checked"),
        ("rl -c local run.model=./model data_prep.source=questions.jsonl", "your own questions with answers"),
    ),
    "eval": (
        ("eval -c tiny", "scores of the tiny models, side by side"),
        ("eval -c tiny -t sums -t facts", "some of the tasks"),
        ("eval -c local run.model=sft:v2 evaluation.limit=100", "one version, on the first rows of each task"),
    ),
    "pipeline": (
        ("pipeline -c tiny", "everything, in minutes on a CPU"),
        ("pipeline -c tiny run.seed=7", "a setting of every step"),
        ("pipeline -c tiny sft.train.train_iters=300", "a setting of one stage"),
        ("pipeline -c tiny --batch PROFILE", "as jobs, each after the one before"),
    ),
}
PREPARE = (
    ("data prep {stage} -c tiny", "what `{stage} -c tiny` trains on, or asks"),
    ("data prep {stage} -c tiny --sample 100", "a hundred rows of it"),
    ("data prep {stage} -c local data_prep.source=mine.jsonl", "a file of your own"),
)


def guide(words: Sequence[str]) -> str:
    """The help for a line such as `super3 data prep sft`, which may be incomplete."""
    words = [word for word in words if word not in families()]
    if words[:1] == ["pipeline"]:
        return "\n".join(_pipeline()) + "\n"
    if words and words[-1] in STAGES:
        return "\n".join(_stage(words[-1], prepares=words[0] == "data")) + "\n"
    return usage()


def _pipeline() -> Iterator[str]:
    yield "usage: nemotron MODEL pipeline [-c CONFIG] [key=value ...] [options]"
    yield "\nAll stages in order, each on what the one before it made, then a report. What is finished is used again."
    yield from _examples(EXAMPLES["pipeline"])
    yield f"\n{options()}"


def _stage(stage: str, *, prepares: bool) -> Iterator[str]:
    verb, script = (f"data prep {stage}", "data_prep.py") if prepares else (stage, "train.py")
    from nemotron_app.launch import stage_directory  # reads configs, which would slow down `nemotron --help`
    from nemotron_app.recipes import names, title

    yield f"usage: nemotron MODEL {verb} [-c CONFIG] [key=value ...] [options]"
    docstring = ast.get_docstring(ast.parse((stage_directory(stage) / script).read_text(encoding="utf-8"))) or ""
    yield f"\n{docstring.partition(chr(10) * 2)[0]}"
    examples = [(line.format(stage=stage), said.format(stage=stage)) for line, said in PREPARE]
    yield from _examples(examples if prepares else EXAMPLES[stage])
    yield "\nconfigs (-c)"
    known = names(stage)
    wide = max(map(len, known))
    yield from (f"  {name:<{wide}}  {title(stage, name)}" for name in known)
    section = "data_prep" if prepares else {"eval": "evaluation"}.get(stage, "train")
    yield "\nsettings"
    show, explain = f"nemotron config show {stage}/tiny", f"nemotron config explain {section}"
    wide = max(len(show), len(explain))
    yield f"  {show:<{wide}}  all of them, and where each value comes from"
    yield f"  {explain:<{wide}}  what they mean; stages/{stage}/README.md has tables"
    yield f"\n{options()}"


def _examples(examples: Sequence[tuple[str, str]]) -> Iterator[str]:
    yield "\nexamples"
    lines = [(f"nemotron {DEFAULT_FAMILY} {line}", said) for line, said in examples]
    wide = max(len(line) for line, _ in lines)
    yield from (f"  {line:<{wide}}  {said}" for line, said in lines)
