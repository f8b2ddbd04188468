"""Questions to prompts: JSONL or Parquet rows with a checkable answer in, NeMo-Gym JSONL rows out.

    python stages/rl/data_prep.py -c tiny
    python stages/rl/data_prep.py data_prep.source=problems.jsonl

    in   {"question": "What is 3+14-5?", "expected_answer": "12"}
    out  {"responses_create_params":{"input":[{"role":"user","content":"What is 3+14-5?"}]},
          "question":"What is 3+14-5?","expected_answer":"12",
          "agent_ref":{"type":"responses_api_agents","name":"math_with_judge_simple_agent"}}

A row that has `responses_create_params` already is checked and passed on as it is. A row that only points to a
question of another data set is filled in from there.
"""

import sys
from collections import Counter
from pathlib import Path
from typing import Any

from nemotron_data.prep.merge import Totals, finish
from nemotron_data.prep.plan import make_shards
from nemotron_data.prep.progress import rejected_text
from nemotron_data.prep.shards import Setting, run_shards
from nemotron_data.sources.blends import find_blend, load_blend
from nemotron_data.sources.files import InputFile, identity
from nemotron_data.sources.rows import describe_sources, input_files, own_files
from nemotron_data.synthetic import problems
from nemotron_shared.artifacts import Source
from nemotron_shared.atomic import write_json
from nemotron_shared.errors import UserError
from nemotron_shared.runtime.step import Outcome, Step, Task
from stages.rl.placeholders import SOURCES
from stages.rl.prompts import PromptWork
from stages.rl.schema import RLConfig, RLData
from stages.rl.source_tables import lay_out, source_files
from stages.rl.splits import FILES, hold_out, join_splits

DIRECTORY = Path(__file__).resolve().parent


def prepare(task: Task[RLConfig]) -> Outcome:
    """Write the rows of each split, with counts of what was read and what was not used."""
    settings: RLData = task.config.data_prep
    output = task.run.fresh_output()
    world = task.run.checkpoints / "world.jsonl"
    files = [input_files(part, world, problems, settings.world_problems) for part in parts_of(settings)]
    shards = make_shards(files, settings.shard_mb << 20, settings.sample)
    setting = Setting.of(settings, task.run)
    laid_out = lay_out(source_sets(settings), setting, settings.shard_mb << 20)
    receipts = run_shards(shards, PromptWork(settings, laid_out), setting)
    totals = finish(setting.directory, shards, receipts, output / "rejected.jsonl")
    if settings.holdout.wanted:
        written = hold_out(receipts, setting.directory, output, settings.holdout)
    else:
        written = join_splits(receipts, setting.directory, output)
    metadata = describe(written, totals)
    write_json(output / "stats.json", metadata)
    write_json(output / "data_manifest.json", data_manifest(written))
    said = f"{written['train']:,} training questions, {written['valid']:,} for validation"
    task.run.say("; ".join(filter(None, [said, rejected_text(totals.rejected)])))
    return Outcome(output, metadata)


def parts_of(settings: RLData) -> list[RLData]:
    """The settings for each data set of a blend, or the one that there is. Every row is used once, so weights do not
    matter here.

    Raises:
        UserError: the blend file is not of its form, or says which split is which.
    """
    file = blend_file(settings)
    if file is None:
        return [settings]
    blend = load_blend(file)
    if blend.train:
        raise UserError(f"{file}: has 'train', 'valid' and 'test'", "list 'datasets'; data_prep.split makes the splits")
    changes = ({"source": entry.path, "subset": entry.subset, "hub_split": entry.split} for entry in blend.datasets)
    return [settings.model_copy(update=change) for change in changes]


def blend_file(settings: RLData) -> Path | None:
    """The source, where it is a blend: one of ours by name, or a JSON file of that form."""
    return find_blend(settings.source, DIRECTORY / "config") if isinstance(settings.source, str) else None


def source_sets(settings: RLData) -> dict[str, list[InputFile]]:
    """The files of the source sets that `data_prep.placeholder_sources` names.

    Raises:
        UserError: a place holds no Parquet file.
    """
    places = settings.placeholder_sources.model_dump()
    return {name: source_files(place, SOURCES[name].split) for name, place in places.items() if place is not None}


def describe(written: Counter[str], totals: Totals) -> dict[str, Any]:
    """The contents of stats.json."""
    return {
        "splits": {name: {"rows": written[name]} for name in FILES if written[name]},
        "files": {name: FILES[name] for name in FILES if written[name]},
        "counts": totals.as_metadata(),
    }


def data_manifest(written: Counter[str]) -> dict[str, Any]:
    """Where a trainer finds its rows: paths relative to the manifest, None for a split without rows."""
    paths = {Path(file).stem: (file, written[name]) for name, file in FILES.items() if written[name]}
    return {
        "train": paths["train"][0],
        "val": paths["val"][0] if "val" in paths else None,
        "splits": {name: {"path": file, "rows": rows} for name, (file, rows) in paths.items()},
    }


def sources(config: RLConfig) -> list[Source]:
    """Every file that is read, those of the placeholders' source sets included."""
    settings = config.data_prep
    parts = [describe_sources(part, "problems", settings.world_problems) for part in parts_of(settings)]
    file = blend_file(settings)
    own = [source for part in parts for source in part] + own_files(str(file) if file else None)
    others = [file for files in source_sets(settings).values() for file in files]
    return [*own, *(Source(file.path, *identity(file)) for file in others)]


STEP = Step(
    stage="rl",
    verb="data_prep",
    directory=DIRECTORY,
    description=__doc__,
    schema=RLConfig,
    produces="{family}-rl-data",
    artifact_type="SplitJsonlDataArtifact",
    sections=("data_prep",),
    sources=sources,
    work=prepare,
)

if __name__ == "__main__":
    sys.exit(STEP.main())
