"""The commands of `nemotron` as functions, for a notebook.

train("sft", "tiny", "optimizer.lr=1e-3")              nemotron super3 sft -c tiny optimizer.lr=1e-3
train("sft", "tiny", {"optimizer.lr": 1e-3})           the same
prepare("sft", "tiny")                                 nemotron super3 data prep sft -c tiny
dry_run("sft", "tiny")["config"]                       nemotron super3 sft -c tiny --dry-run
evaluate("sft", "tiny", tasks=["sums"])                nemotron super3 eval -c tiny -t sums run.model=sft
finetune("pretrain", "chats.jsonl")                    nemotron finetune pretrain chats.jsonl
ask("sft", ["What is 3+4?", "What is 9-2?"])           nemotron generate sft FILE --out FILE

Each runs its command: what one of them has made, the other finds, and an interrupted one continues when it is called
again.
"""

import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nemotron_app.notebook.artifacts import Artifact, Home, artifact, made_at, open_store, scores_in, table_of
from nemotron_app.notebook.commands import answer_of
from nemotron_shared.config.overrides import override
from nemotron_shared.stages import DEFAULT_FAMILY, STAGES
from nemotron_shared.system.errors import UserError, did_you_mean

if TYPE_CHECKING:
    import pyarrow

Override = str | Mapping[str, Any]
"""`"optimizer.lr=1e-3"`, or `{"optimizer.lr": 1e-3, "run.model": artifact}`."""
Message = Mapping[str, Any]
Prompt = str | Sequence[Message]


def train(
    stage: str,
    config: str | Path | None = None,
    *overrides: Override,
    family: str = DEFAULT_FAMILY,
    home: Home = None,
    force: bool = False,
    trust_code: bool = False,
    quiet: bool = False,
) -> Artifact:
    """Train a stage, or use the result that the same settings, inputs and code have made before.

    Args:
        stage: `pretrain`, `sft` or `rl`.
        config: name or file; None for the family's published recipe.
        home: the store; None for that of the artifacts in `overrides`, or else the one that `nemotron` uses here.
        force: train again even where a result exists.
        trust_code: run the Python files of a model that needs them, and of rewards and tasks.
        quiet: print warnings only.

    Raises:
        UserError: the config, an input or the machine is not fit for it.
        KeyboardInterrupt: interrupted; the same call continues from what was saved.
    """
    words = [family, known(stage), *_words(config, overrides, home, trust_code, force)]
    return made_at(answer_of(words, quiet=quiet)["path"])


def prepare(
    stage: str,
    config: str | Path | None = None,
    *overrides: Override,
    family: str = DEFAULT_FAMILY,
    home: Home = None,
    force: bool = False,
    trust_code: bool = False,
    quiet: bool = False,
) -> Artifact:
    """Prepare the data of a stage. The arguments are those of `train`."""
    words = [family, "data", "prep", known(stage), *_words(config, overrides, home, trust_code, force)]
    return made_at(answer_of(words, quiet=quiet)["path"])


def dry_run(
    stage: str,
    config: str | Path | None = None,
    *overrides: Override,
    family: str = DEFAULT_FAMILY,
    home: Home = None,
    trust_code: bool = False,
) -> dict[str, Any]:
    """What `train` would do with these arguments: `config`, `origins` of its values, `inputs`, `problems` and more.

    Raises:
        UserError: the config is not valid.
    """
    words = [family, known(stage), *_words(config, overrides, home, trust_code), "--dry-run"]
    return answer_of(words, quiet=True, allowed=(0, 1))


def evaluate(
    model: str | Artifact | None = None,
    config: str | Path | None = None,
    *overrides: Override,
    tasks: Sequence[str] = (),
    family: str = DEFAULT_FAMILY,
    home: Home = None,
    force: bool = False,
    trust_code: bool = False,
    quiet: bool = False,
) -> Artifact:
    """Score models on held-out tasks; `metrics` of the result has a row for each model and task.

    Args:
        model: the model to evaluate; None for the one that the config names. Others that the config names, `run.base`
            and `run.sft`, are scored with it; `{"run.base": None, "run.sft": None}` leaves them out.
        tasks: some of the tasks; none for all.

    The other arguments are those of `train`.
    """
    given = () if model is None else ({"run.model": model},)
    words = _words(config, (*given, *overrides), home, trust_code, force)
    words += [word for task in tasks for word in ("--task", task)]
    return made_at(answer_of([family, "eval", *words], quiet=quiet)["path"])


@dataclass(frozen=True)
class FineTuning:
    """A fine-tuned model, compared with the one it came from.

    Attributes:
        steps: of the training.
        scores: a row for each model and task on held-out rows: bits per byte, with the 95% interval.
        right: right answers by task, of those that a rule judges: `before`, `after`, `judged`, `asked`.
        answers: question, expected answer, and what each model wrote.
    """

    model: Artifact
    data: Artifact
    steps: int
    scores: "pyarrow.Table"
    right: dict[str, dict[str, int]]
    answers: list[dict[str, Any]]


def finetune(
    model: str | Artifact,
    data: str | Path | Sequence[str | Path],
    *overrides: Override,
    again: bool = False,
    family: str = DEFAULT_FAMILY,
    home: Home = None,
    trust_code: bool = False,
    quiet: bool = False,
) -> FineTuning:
    """Fine-tune a model on a file, with settings chosen to suit both; see docs/finetune.md.

    Args:
        model: an artifact, a folder, or `hf://ORG/NAME`.
        data: one or more files.
        again: discard the choices of an earlier call for the same model and data.

    Raises:
        UserError: the model or the data cannot be used.
        KeyboardInterrupt: interrupted; the same call continues from what was saved.
    """
    files = [data] if isinstance(data, str | Path) else data
    words = ["finetune", str(model), *map(str, files), *overrides_of(overrides), "--family", family]
    words += _options(home_of(home, model, *overrides), trust_code) + (["--again"] if again else [])
    told = answer_of(words, quiet=quiet)
    tuned = made_at(told["path"])
    models = {score["model"]: {"label": score["model"], "reference": None} for score in told["scores"]}
    scores = table_of(scores_in({"models": models, "scores": told["scores"]})).drop_columns("artifact")
    prepared = artifact(told["data"], home=tuned.home)
    return FineTuning(tuned, prepared, told["steps"], scores, told["right"] | told.get("calls", {}), told["answers"])


@dataclass(frozen=True)
class Answer:
    """An answer of a model; as text, what it says after its thought.

    Attributes:
        reasoning: its thought; None without one.
        finish_reason: `stop`, `length` or `tool_calls`.
        tool_calls: as OpenAI's API has them.
    """

    text: str
    reasoning: str | None
    finish_reason: str
    tool_calls: tuple[dict[str, Any], ...] = ()

    def __str__(self) -> str:
        return self.text


def ask(
    model: str | Artifact,
    prompts: Prompt | Sequence[Prompt],
    *,
    max_tokens: int = 512,
    temperature: float | None = None,
    top_p: float | None = None,
    seed: int | None = None,
    system: str | None = None,
    raw: bool = False,
    think: bool = True,
    family: str = DEFAULT_FAMILY,
    home: Home = None,
    trust_code: bool = False,
    quiet: bool = False,
) -> Answer | list[Answer]:
    """Ask a model. Every call loads it again, which takes some seconds, so ask many prompts at once.

    Args:
        prompts: a text, or a conversation as a list of messages; or a list of these.
        max_tokens: length of an answer, at most.
        temperature: 0 for the likeliest token each time; None for the model's own default.
        top_p: draw from this share of the best.
        seed: the same seed draws the same answers.
        system: a system message before each prompt.
        raw: continue the text, without the chat template.
        think: False tells the chat template that no thought is wanted.

    Returns:
        An answer, or a list of them where `prompts` is a list.

    Raises:
        UserError: no such model, or a prompt that it cannot take.
    """
    several = not isinstance(prompts, str) and not (prompts and isinstance(prompts[0], Mapping))
    rows = [{"prompt" if isinstance(one, str) else "messages": one} for one in (prompts if several else [prompts])]
    if not rows:
        return []
    asked = {"max-tokens": max_tokens, "temperature": temperature, "top-p": top_p, "seed": seed, "system": system}
    words = [f"--{name}={value}" for name, value in asked.items() if value is not None]
    words += ["--raw"] if raw else []
    words += [] if think else ["--no-think"]
    words += ["--family", family, *_options(home_of(home, model), trust_code)]
    with tempfile.TemporaryDirectory(prefix="nemotron-ask-") as folder:
        file, out = Path(folder) / "prompts.jsonl", Path(folder) / "answers.jsonl"
        file.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
        answer_of(["generate", str(model), str(file), "--out", str(out), *words], quiet=quiet)
        lines = [json.loads(line) for line in out.read_text(encoding="utf-8").split("\n") if line]
    found = [
        Answer(line["response"], line.get("reasoning"), line["finish_reason"], tuple(line.get("tool_calls", ())))
        for line in lines
    ]
    return found if several else found[0]


def known(stage: str) -> str:
    """A stage's name.

    Raises:
        UserError: unknown stage.
    """
    if stage not in STAGES:
        remedy = did_you_mean(stage, STAGES, f"there are: {', '.join(STAGES)}")
        raise UserError(f"no stage named '{stage}'", remedy)
    return stage


def overrides_of(given: Sequence[Override]) -> list[str]:
    """Overrides as a command line has them.

    Raises:
        UserError: one that sets no key.
    """
    found = []
    for one in given:
        if isinstance(one, Mapping):
            found += [override(key, _plain(value)) for key, value in one.items()]
        elif one.startswith("-") or not ("=" in one or one.startswith("~")):
            raise UserError(f"'{one}' is not an override", "write 'key=value', or {'key': value}")
        else:
            found.append(one)
    return found


def _plain(value: Any) -> Any:
    """Numbers and arrays of numpy, and values of a table, as Python's own; anything else as it is."""
    if isinstance(value, Mapping):
        return {key: _plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    if hasattr(value, "dtype") and hasattr(value, "tolist"):
        return value.tolist()
    return value.as_py() if hasattr(value, "as_py") else value


def home_of(home: Home, *given: Any) -> Home:
    """The store of a call: `home`, or else the one that its artifacts are in. None for the one used here.

    Args:
        given: the model and the overrides, in which artifacts stand for their references.

    Raises:
        UserError: an artifact is in another store than `home` or another artifact, where its reference means nothing,
            or something else.
    """
    store, whose = None if home is None else open_store(home).home, f"home={str(home)!r}"
    for one in _artifacts_in(given):
        if store is None:
            store, whose = one.home, f"that of {one}, {one.home}"
        elif store.resolve() != one.home.resolve():
            what = f"{one} is in the store {one.home}, and the call's store is {whose}"
            raise UserError(what, "give artifacts of one store, and no other home")
    return home if home is not None or store is None or store.resolve() == open_store(None).home.resolve() else store


def _artifacts_in(value: Any) -> Iterator[Artifact]:
    if isinstance(value, Artifact):
        yield value
    elif isinstance(value, Mapping | list | tuple):
        for one in value.values() if isinstance(value, Mapping) else value:
            yield from _artifacts_in(one)


def _words(
    config: str | Path | None, overrides: Sequence[Override], home: Home, trust_code: bool, force: bool = False
) -> list[str]:
    """The words after a step's name."""
    home, words = home_of(home, *overrides), [] if config is None else ["-c", str(config)]
    words += overrides_of(overrides) + ([] if home is None else [override("run.home", str(home))])
    return [*words, *(["--trust-code"] if trust_code else []), *(["--force"] if force else [])]


def _options(home: Home, trust_code: bool) -> list[str]:
    """The options of the commands that are not steps."""
    return ([] if home is None else [f"--home={home}"]) + (["--trust-code"] if trust_code else [])
