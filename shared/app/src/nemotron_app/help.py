"""The texts of `nemotron --help`, `nemotron super3 sft --help` and `nemotron pipeline --help`."""

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from nemotron_shared.families import families
from nemotron_shared.stages import DEFAULT_FAMILY, STAGES
from nemotron_shared.system.process import as_typed


@dataclass(frozen=True)
class PipelineStep:
    """A numbered step of the pipeline."""

    title: str
    stage: str
    verbs: tuple[str, ...]


PIPELINE = tuple(
    step
    for stage in STAGES.values()
    for step in (
        # both halves of the evaluation form one step, because its data alone is of no use
        [PipelineStep(stage.result.step, stage.name, ("data_prep", "train"))]
        if stage.model is None
        else [
            PipelineStep(stage.data.step, stage.name, ("data_prep",)),
            PipelineStep(stage.result.step, stage.name, ("train",)),
        ]
    )
)

OPTIONS = """\
options, before or after the words above
  -c, --config NAME|PATH         config of the stage (default: the model's own recipe; a CPU wants: tiny)
  key=value, +key=, ++key=, ~key change config values (Hydra grammar)
  --sample N                     prepare at most N rows
  --force                        redo the work even where a result exists
  -r, --run PROFILE              as a job of a machine in env.toml: submit, wait, show its log
  -b, --batch PROFILE            the same without waiting; --stage PROFILE only lays everything out there
  -d, --dry-run                  show the resolved config, the inputs and the command; run nothing
  --machine FILE                 with --dry-run: judge for the machine that FILE describes
  --json                         results as JSON on stdout
  --trust-code                   run the Python files of a model that needs them, and of rewards and tasks
  --allow-experimental           run a family marked experimental
  --version, -h, --help
"""

USAGE = """\
usage: nemotron MODEL COMMAND [-c CONFIG] [key=value ...] [options]

Train and evaluate Nemotron 3 models: four stages, from a laptop CPU to a cluster.

start here
  nemotron super3 pipeline -c tiny

models
{families}

commands (COMMAND --help: examples and configs)

make
  MODEL pipeline                 all seven steps in order, then a report
  MODEL data prep STAGE          prepare the data of pretrain, sft, rl or eval
  MODEL pretrain | sft | rl      train
  MODEL eval [-t TASK ...]       evaluate; -t picks tasks and may be repeated
  finetune MODEL DATA [key=value ...]
                                 from a file to a fine-tuned model, compared with the one before
  model import hf://ORG/NAME[@REVISION] | PATH | megatron:PATH
                                 bring a model in as an artifact
  data import STAGE DIR          make an artifact of data that was prepared elsewhere
  new NAME --from STAGE/CONFIG   a config of your own, which begins with one that is there
  new reward|task|environment NAME
                                 one of your own, to begin with
  env [list|start|stop|new|try]  environments that answer a model over several turns

look
  plan CONFIG [GPUS]             memory, disk, time and GPU hours of a training, before it
  config [list|show|diff|explain|translate]
                                 the configs, their values and where each comes from, what a setting means
  data inspect PATH [--html FILE]
                                 look at prepared data: text, loss mask, lengths, duplicates
  runs [list|show|stop|rm]       what is running or was stopped; what it writes (RL); stop it, remove it
  check RUN... [--expect NAME] [--watch]
                                 whether a run shows what a healthy one shows; what a model folder is
  report [--family NAME] [--out FILE]
                                 write the report of what has been made so far

use
  chat [MODEL]                   talk to a model in the terminal; without MODEL the newest one
  generate MODEL FILE --out FILE answer a file of prompts; resumes where it was stopped
  serve MODEL [--port N]         an OpenAI-compatible server, with a page to chat
  export MODEL DIR [--push ORG/NAME]
                                 a folder for the hub, with a model card
  verify DIR | FILE.gguf         whether an export is the model that it was made from
  check-sampling MODEL           whether sampling and training compute the same log-probabilities

cluster
  engine [list|install NAME]     the engines; make an environment for one that needs its own
  doctor [PROFILE]               whether a machine or a cluster is ready, before anything runs there
  jobs [list|logs|cancel]        jobs that --run and --batch made: their state and logs; end one
  diagnose JOB|LOGDIR|LOGFILE    why a job failed, and what to do about it
  airgap [fetch|build|scripts]   an environment for machines without a network

keep
  artifacts [list|show|lineage|verify|replay|alias|path|rm|gc]
                                 what has been made, from what; make it again; make room
  completion bash|zsh|fish       make the shell complete these lines

{options}
"""


def usage() -> str:
    """The text of `nemotron --help`."""
    listed = "\n".join(
        f"  {name:<12} {family.title}{' [experimental]' if family.experimental else ''}"
        for name, family in families().items()
    )
    return as_typed(USAGE.format(families=listed, options=OPTIONS.rstrip("\n")))


def options() -> str:
    """The options section, shared by all commands about a model."""
    return OPTIONS.rstrip("\n")


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
