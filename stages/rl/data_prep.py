"""Questions to prompts: JSONL or Parquet rows with a checkable answer in, NeMo-Gym JSONL rows out.

    python stages/rl/data_prep.py -c tiny
    python stages/rl/data_prep.py -c local data_prep.source=problems.jsonl

    in   {"question": "What is 3+14-5?", "expected_answer": "12"}
    out  {"responses_create_params":{"input":[{"role":"user","content":"What is 3+14-5?"}]},
          "question":"What is 3+14-5?","expected_answer":"12",
          "agent_ref":{"type":"responses_api_agents","name":"math_with_judge_simple_agent"}}

With `data_prep.pairs`, a row is a prompt with a better and a worse answer; see pairs.py.

A row that already has `responses_create_params` is checked and passed through. A placeholder row, which only points
to a question of another data set, is filled in from there. The steps:

    read -> split -> encode    workers convert one input shard each to NeMo-Gym's form; see prompts.py
         -> pack -> write      the shards' rows are concatenated into one file per split; see prompts.py
"""

import sys
from functools import partial
from importlib.util import find_spec
from pathlib import Path

if not find_spec("nemotron_shared"):
    print(f"error: this Python has none of the project's packages; say: uv run python {sys.argv[0]}", file=sys.stderr)
    sys.exit(2)

from nemotron_data import decontaminate
from nemotron_data.chat.called import FIELDS as FIELDS_OF_CALLS
from nemotron_data.decontaminate import Decontamination
from nemotron_data.formats.rl_rows import PARAMETERS
from nemotron_data.prep.pipeline import open_inputs
from nemotron_data.prep.sampling import look_ahead
from nemotron_data.sources.datasets import RowKind
from nemotron_data.sources.input_file import InputFile, identity
from nemotron_data.sources.published import availability
from nemotron_data.synthetic import BEGINNINGS, pairs, problems
from nemotron_data.verifier.judgement import require_decidable
from nemotron_shared.artifacts import Source
from nemotron_shared.engine.spec import Outcome, Step, Task
from nemotron_shared.step.step import run_program
from nemotron_shared.system.atomic import write_json
from stages.rl.pairs import FIELDS
from stages.rl.placeholders import SOURCES, is_placeholder, lay_out, source_files
from stages.rl.prompts import AGENT, FILES, PromptWork, hold_out, join_splits, require_usable
from stages.rl.schema import RLConfig, RLData

DIRECTORY = Path(__file__).resolve().parent
AGENTS = "agents"
"""In the manifest: the agents that rows name, each with the place of its first row."""
# Every row is used once, so a blend's weights have no effect here, and it may not assign splits either.
ROWS = RowKind("problems", DIRECTORY / "config", problems, "problems", presplit=False, more=BEGINNINGS)
PAIRS = RowKind("pairs", DIRECTORY / "config", pairs, "pairs", presplit=False)


def kind_of(settings: RLData) -> RowKind:
    """What the rows are: questions with answers, or pairs of answers."""
    return PAIRS if settings.pairs else ROWS


def prepare(task: Task[RLConfig]) -> Outcome:
    """Write the rows of each split, with counts of rows that were read and rows that were not used."""
    settings: RLData = task.config.data_prep
    output = task.run.fresh_output()

    # read: cut the files of each data set into shards, and lay out the sets that placeholders point into
    inputs = open_inputs(kind_of(settings), settings, settings.synthetic_problems, task.run)
    # rows in NeMo-Gym's form, and placeholders, keep their other fields
    read = FIELDS if settings.pairs else (settings.answer_field, *settings.keep_fields, *FIELDS_OF_CALLS)
    inputs.say_unread(
        lambda chosen: (chosen.question_field, *read, chosen.key_field),
        lambda row: PARAMETERS in row or is_placeholder(row),
    )
    tables = lay_out(source_sets(settings), inputs.setting, settings.shard_mb << 20)

    # split, encode: each worker converts the rows of a shard to NeMo-Gym's form
    decontamination = Decontamination.of(task.config, task.store)
    prepared = inputs.process(PromptWork(inputs.parts, tables, decontamination), output)
    prepared.require_few_lost(settings.max_lost, {})
    require_decidable(prepared.totals.counts, settings.max_lost)

    # pack, write: one file for each split
    by_place = settings.holdout.wanted
    written = hold_out(prepared, output, settings.holdout) if by_place else join_splits(prepared, output)
    files = {name: file for name, file in FILES.items() if written[name]}
    metadata = ({"rows": PAIRS.name} if settings.pairs else {}) | {
        "splits": {name: {"rows": written[name]} for name in files},
        "files": files,
        "counts": prepared.totals.as_metadata(),
    }
    write_json(output / "stats.json", metadata)
    # for the trainer: paths relative to the manifest, None for a split without rows
    splits = {Path(file).stem: {"path": file, "rows": written[name]} for name, file in files.items()}
    manifest = {"train": FILES["train"], "val": files.get("valid"), "splits": splits}
    write_json(output / "data_manifest.json", manifest)
    what = "pairs" if settings.pairs else "questions"
    prepared.announce(f"{written['train']:,} training {what}, {written['valid']:,} for validation")
    decontamination.say(prepared)
    # for errors; not in stats.json, whose bytes depend on no folder's name
    here, examples = f"{task.run.checkpoints}/", prepared.totals.examples.items()
    agents = {name.removeprefix(AGENT): place.removeprefix(here) for name, place in examples if name.startswith(AGENT)}
    return Outcome(output, metadata | ({AGENTS: agents} if agents else {}))


def source_sets(settings: RLData) -> dict[str, list[InputFile]]:
    """The files of the source sets that `data_prep.placeholder_sources` names.

    Raises:
        UserError: a place holds no Parquet file.
    """
    places = settings.placeholder_sources.model_dump()
    return {name: source_files(place, SOURCES[name].split) for name, place in places.items() if place is not None}


def sources(config: RLConfig) -> list[Source]:
    """Every file we read, including the source sets of placeholders."""
    settings = config.data_prep
    others = [file for files in source_sets(settings).values() for file in files]
    own = kind_of(settings).sources(settings, settings.synthetic_problems)
    return [*own, *(Source(file.path, *identity(file)) for file in others), *decontaminate.sources(config)]


STEP = Step(
    __file__,
    __doc__,
    RLConfig,
    prepare,
    sources=sources,
    look=lambda config: look_ahead(
        kind_of(config.data_prep).parts(config.data_prep), lambda part: lambda row: require_usable(row, part.settings)
    ),
    remarks=lambda values: availability(values, ROWS.config),
)
main = partial(run_program, STEP)

if __name__ == "__main__":
    sys.exit(main())
