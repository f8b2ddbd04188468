"""The table of commands and pipeline steps."""

from dataclasses import dataclass

from nemotron_shared.families import families
from nemotron_shared.stages import STAGES


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
  --trust-code                   run the Python files of a model that cannot do without
  --allow-experimental           run a family marked experimental
  --version, -h, --help
"""

USAGE = """\
usage: nemotron MODEL COMMAND [-c CONFIG] [key=value ...] [options]

Train and evaluate Nemotron 3 models: four stages, from a laptop CPU to a cluster.

models
{families}

commands (COMMAND --help: examples and configs)
  MODEL pipeline                 all seven steps in order, then a report
  MODEL data prep STAGE          prepare the data of pretrain, sft, rl or eval
  MODEL pretrain | sft | rl      train
  MODEL eval [-t TASK ...]       evaluate; -t picks tasks and may be repeated
  finetune MODEL DATA [key=value ...]
                                 from a file to a fine-tuned model, compared with the one before
  data inspect PATH [--html FILE]
                                 look at prepared data: text, loss mask, lengths, duplicates
  data import STAGE DIR          make an artifact of data that was prepared elsewhere
  artifacts [list|show|lineage|verify|replay|alias|path|rm|gc]
                                 what has been made, from what; make it again; make room
  model import hf://ORG/NAME[@REVISION] | PATH | megatron:PATH
                                 bring a model in as an artifact
  chat [MODEL]                   talk to a model in the terminal; without MODEL the newest one
  generate MODEL FILE --out FILE answer a file of prompts; goes on where it was stopped
  serve MODEL [--port N]         an OpenAI-compatible server, with a page to chat
  export MODEL DIR [--push ORG/NAME]
                                 a folder for the hub, with a model card
  runs [list|stop|rm]            what is running or was stopped; stop it, remove it
  check RUN... [--expect NAME] [--watch]
                                 whether a run shows what a healthy one shows; what a model folder is
  jobs [list|logs|cancel]        jobs that --run and --batch made: their state and logs; end one
  diagnose JOB|LOGDIR|LOGFILE    why a job failed, and what to do about it
  engine [list|install NAME]     the engines; make an environment for one that needs its own
  plan CONFIG [GPUS]             memory, disk, time and GPU hours of a training, before it: plan pretrain/super3 64xH100
  new NAME --from STAGE/CONFIG   a config of your own, which begins with one that is there
  config [list|show|diff|explain|translate]
                                 the configs, their values and where each comes from, what a setting means
  completion bash|zsh|fish       make the shell complete these lines
  report [--family NAME] [--out FILE]
                                 write the report of what has been made so far

{options}

start here
  nemotron super3 pipeline -c tiny
"""


def usage() -> str:
    """The text of `nemotron --help`."""
    listed = "\n".join(
        f"  {name:<12} {family.title}{' [experimental]' if family.experimental else ''}"
        for name, family in families().items()
    )
    return USAGE.format(families=listed, options=OPTIONS.rstrip("\n"))


def options() -> str:
    """The options section, shared by all commands about a model."""
    return OPTIONS.rstrip("\n")
