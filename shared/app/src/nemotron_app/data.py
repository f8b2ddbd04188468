"""`nemotron data`: look at a prepared set, and publish data that was prepared elsewhere as an artifact."""

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from nemotron_app import completion
from nemotron_app.inspect.measure import BUDGET, Options, inspect_data
from nemotron_app.inspect.show import print_inspection, render
from nemotron_app.inspect.splits import PLACEHOLDER
from nemotron_app.store_options import Look, store_options
from nemotron_shared.artifacts import Artifact, Source, Store
from nemotron_shared.artifacts.artifact import file_table, table_digest
from nemotron_shared.artifacts.names import check_name
from nemotron_shared.models.importing import made_from, made_once, producer, publish, require_name, staging
from nemotron_shared.stages import DEFAULT_FAMILY, STAGES
from nemotron_shared.system.atomic import copy_content, output_file, read_json, write_json, write_text
from nemotron_shared.system.console import say, tell, tell_json
from nemotron_shared.system.errors import UserError, printable

TOKENS_SHOWN = 600
TOKENS_ON_PAGE = 4_096
NATURAL = click.IntRange(min=0)


@click.group("data", no_args_is_help=False)
def command() -> None:
    """Inspect or import data. To prepare it, use: nemotron MODEL data prep STAGE."""


@command.command("inspect")
@click.argument("path", shell_complete=completion.data)
@click.option("--split", metavar="NAME", help="show examples of this split (default: the first)")
@click.option("--rows", type=NATURAL, default=5, show_default=True, metavar="N", help="how many examples")
@click.option("--row", type=NATURAL, metavar="I", help="show only this one, counted from 0")
@click.option("--shuffle", type=int, metavar="SEED", help="choose the examples by this seed")
@click.option(
    "--tokens",
    type=NATURAL,
    metavar="N",
    help=f"show N tokens of an example (default: {TOKENS_SHOWN}, on the page {TOKENS_ON_PAGE})",
)
@click.option(
    "--scan",
    "budget",
    default=str(BUDGET),
    metavar="N|all",
    callback=lambda ctx, param, value: 2**62 if value == "all" else NATURAL(value, param, ctx),
    help=f"read N tokens per split for the statistics (default: {BUDGET:,}); beyond, a sample",
)
@click.option("--against", metavar="PATH", help="look for the questions of this held-out set")
@click.option("--tokenizer", type=click.Path(path_type=Path), metavar="DIR", help="decode with this tokenizer")
@click.option("--html", metavar="FILE", help="write a page instead")
@store_options
def inspect(look: Look, path: str, tokens: int | None, html: str | None, **choice: Any) -> int:
    """\b
    `nemotron data inspect`: look at a prepared set before training on it.

    \b
    nemotron data inspect sft-data                             statistics, histograms and the first rows
    nemotron data inspect sft-data --row 12                    one row
    nemotron data inspect pretrain-data --shuffle 1 --rows 20  random documents, with a seed
    nemotron data inspect out/train.parquet --html look.html   a self-contained page
    nemotron data inspect rl-data --against eval-data          check for test questions in its questions
    nemotron data inspect sft-data --json                      the statistics, for programs
    """
    page = None if html is None else output_file(html)
    found = inspect_data(path, look.store, Options(family=look.family, **choice))
    if page:
        write_text(page, render(found, tokens or TOKENS_ON_PAGE))
    if look.json:
        tell_json(found.summary())
    elif page:
        tell("\n".join([*(f"warning: {warning}" for warning in found.warnings), f"page: {html}"]))
    else:
        print_inspection(found, tokens or TOKENS_SHOWN)
    return 0


TOKENIZER, STATS, BLEND = "tokenizer", "stats.json", "blend.json"
ROWS = {"train": "train.jsonl", "valid": "val.jsonl", "test": "test.jsonl"}

ROW_LAYOUT = (
    'a row needs {"responses_create_params": {"input": [{"role": "user", "content": ...}]}}; other rows, as of question'
    " and expected_answer, are made so by: nemotron super3 data prep rl -c local data_prep.source=FILE.jsonl"
)


@dataclass(frozen=True)
class Prepared:
    """Contents of a folder: the data files, by their path in the artifact, and statistics."""

    files: dict[str, Path]
    figures: dict[str, Any]
    blend: dict[str, list[tuple[float, str]]] | None = None
    """Contents of blend.json, generated if the folder has none."""


@command.command("import")
@click.argument("stage", type=click.Choice(list(STAGES)))
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
@click.option("--as", "name", metavar="NAME", help="name of the artifact (default: that of the stage's data)")
@click.option("--tokenizer", metavar="DIR", type=click.Path(path_type=Path), help="the tokenizer that made the ids")
@store_options
def import_(look: Look, stage: str, folder: Path, name: str | None, tokenizer: Path | None) -> int:
    """\b
    `nemotron data import`: publish data that was prepared elsewhere as an artifact.

    \b
    nemotron data import pretrain ./tokens    blend.json and the .bin/.idx pairs that it names; or train.bin and train.idx
    nemotron data import sft ./packed         train.parquet with packed rows; valid.parquet, test.parquet
    nemotron data import rl ./rows            train.jsonl; val.jsonl, test.jsonl
    nemotron data import eval ./tasks         tasks.json and the file of each task
    nemotron nano3 data import sft ./packed   the same as --as nano3-sft-data
    nemotron data import sft ./packed --tokenizer ./model    if the folder has no tokenizer/

    \b
    Every file is read completely and checked first. Only files that belong to the data are copied.
    """  # noqa: E501 - a column of the help
    name = STAGES[stage].data.name(look.family) if name is None else name
    check_name(name)
    folder = folder.expanduser()
    artifact = import_data(look.store, stage, folder, name, (tokenizer or folder / TOKENIZER).expanduser())
    look.tell({"artifact": artifact.reference, "path": str(artifact.path)}, artifact.reference)
    return 0


def import_data(store: Store, stage: str, folder: Path, name: str, tokenizer: Path) -> Artifact:
    """Check a folder and publish it as the data of a stage.

    Raises:
        UserError: the folder lacks what the stage reads, or is incomplete.
    """
    from nemotron_data.formats.bin_idx import write_blend
    from nemotron_data.tokenizers.folder import copy_tokenizer

    label, type = printable(str(folder)), STAGES[stage].data.type
    if not folder.is_dir():
        raise UserError(f"{label}: no such folder", "give the folder that holds the prepared data")
    require_name(store, name, type)
    with made_once(store, name, label), staging(store, name) as staged:
        if stage in ("pretrain", "sft"):
            ids = _ids_of(label, tokenizer)
            prepared = _documents(folder, ids) if stage == "pretrain" else _packs(folder, ids)
            copy_tokenizer(tokenizer, staged / TOKENIZER)
        else:
            prepared = _rows(folder) if stage == "rl" else _tasks(folder)
        for place, file in prepared.files.items():
            (staged / place).parent.mkdir(parents=True, exist_ok=True)
            copy_content(file.resolve(), staged / place)
        if prepared.blend:
            write_blend(staged / BLEND, prepared.blend)
        write_json(staged / STATS, prepared.figures)
        source = Source(str(folder.resolve()), table_digest(file_table(staged)), {})
        made = made_from(store, name, source)
        if made is not None:
            say(f"[{label}] unchanged: {made.reference}")
            return made
        again = ["data", "import", stage, label]
        again += ["--as", name] if name != STAGES[stage].data.name(DEFAULT_FAMILY) else []
        if tokenizer != folder / TOKENIZER:
            again += ["--tokenizer", printable(str(tokenizer))]
        how = producer(shlex.join(again))
        return publish(store, staged, name, source, type, how, label, prepared.figures)


def _ids_of(label: str, tokenizer: Path) -> int:
    """Size of the id range of a tokenizer, including unused ids."""
    from nemotron_data.tokenizers.folder import TokenizerFolder

    if not (tokenizer / "tokenizer.json").is_file():
        what = f"{label}: {printable(str(tokenizer))} holds no tokenizer.json"
        raise UserError(what, "say which tokenizer made the ids: --tokenizer DIR")
    return max(TokenizerFolder(tokenizer).tokenizer.get_vocab(with_added_tokens=True).values()) + 1


def _require_ids(place: str, lowest: int, highest: int, ids: int) -> None:
    if lowest < 0 or highest >= ids:
        what = f"{place}: ids from {lowest} to {highest}, and the tokenizer has {ids}"
        raise UserError(what, "say which tokenizer made the ids: --tokenizer DIR")


def _documents(folder: Path, ids: int) -> Prepared:
    """Token shards: those listed in blend.json, or one pair per split."""
    from nemotron_data.formats.bin_idx import IndexedDataset, read_blend
    from nemotron_data.split import SPLITS

    own = (folder / BLEND).is_file()
    blend = read_blend(folder / BLEND) if own else {
        split: [(1.0, folder / split)] for split in SPLITS if (folder / f"{split}.idx").is_file()
    }  # fmt: skip
    if "train" not in blend:
        raise UserError(f"{folder}: no pairs to train on", "it needs a blend.json, or train.bin and train.idx")
    files, splits = {BLEND: folder / BLEND} if own else {}, {}
    for split, entries in blend.items():
        documents = tokens = 0
        for _, prefix in entries:
            dataset = IndexedDataset(prefix)
            documents, tokens = documents + len(dataset), tokens + dataset.num_tokens
            _require_ids(f"{prefix}.bin", *dataset.id_range(), ids)
            pair = (Path(f"{prefix}{ending}") for ending in (".bin", ".idx"))
            files |= {file.relative_to(folder).as_posix(): file for file in pair}
        splits[split] = {"documents": documents, "tokens": tokens}
    figures = {"total_tokens": sum(one["tokens"] for one in splits.values()), "splits": splits, "vocab_size": ids}
    named = {split: [(weight, split) for weight, _ in entries] for split, entries in blend.items()}
    return Prepared(files, figures, None if own else named)


def _packs(folder: Path, ids: int) -> Prepared:
    """Packed rows, one file per split."""
    from nemotron_data.formats.packed import read_packed
    from nemotron_data.split import SPLITS

    files, splits, longest = {}, {}, _own_pack_size(folder)
    for file in (folder / f"{split}.parquet" for split in SPLITS):
        if not file.is_file() and file.stem != "train":
            continue
        rows = read_packed(file)
        if not rows:
            raise UserError(f"{file}: holds no rows", "take the file out, or write it again")
        lowest, highest = min(int(row.input_ids.min()) for row in rows), max(int(row.input_ids.max()) for row in rows)
        _require_ids(str(file), lowest, highest, ids)
        longest = max(longest, *(len(row.input_ids) for row in rows))
        files[file.name] = file
        splits[file.stem] = {
            "sequences": sum(len(row.seq_start_id) for row in rows),
            "packed_rows": len(rows),
            "tokens": sum(len(row.input_ids) for row in rows),
            "trained_tokens": sum(int(row.loss_mask.sum()) for row in rows),
        }
    return Prepared(files, {"pack_size": longest, "data_format": "packed_sft_parquet", "splits": splits})


def _own_pack_size(folder: Path) -> int:
    """The row length that the folder declares (all rows may be shorter); 0 if it declares none."""
    stats = read_json(folder / STATS) if (folder / STATS).is_file() else {}
    size = stats.get("pack_size") if isinstance(stats, dict) else None
    return size if isinstance(size, int) else 0


def _rows(folder: Path) -> Prepared:
    """Reinforcement-learning questions, one file per split."""
    from nemotron_data.formats.rl_rows import read_rl_rows

    files = {split: folder / name for split, name in ROWS.items() if split == "train" or (folder / name).is_file()}
    splits = {}
    for split, file in files.items():
        if not file.is_file():
            raise UserError(f"{file}: no such file", "give the folder that holds the rows to train on")
        count = sum(1 for _ in read_rl_rows(file, _check_row, "not a row to import", ROW_LAYOUT))
        if not count:
            raise UserError(f"{file}: holds no rows", "take the file out, or write it again")
        splits[split] = {"rows": count}
    figures = {"splits": splits, "files": {split: file.name for split, file in files.items()}}
    return Prepared({file.name: file for file in files.values()}, figures)


def _check_row(row: Mapping[str, Any]) -> None:
    """Check the fields that a trainer needs, and for rows that name an agent, those that the agent needs."""
    from nemotron_data.formats.rl_rows import validate, validate_prompt
    from nemotron_data.rejects import Refused

    if PLACEHOLDER in row:
        raise Refused("a placeholder that was not resolved", "data prep rl fills it in")
    (validate if "agent_ref" in row else validate_prompt)(row)


def _tasks(folder: Path) -> Prepared:
    """Evaluation tasks."""
    from nemotron_data.formats.eval_tasks import TASKS, read_task_rows, read_tasks

    if not (folder / TASKS).is_file():
        raise UserError(f"{folder}: holds no {TASKS}", "give the folder that holds the tasks of an evaluation")
    tasks, found = read_tasks(folder), {}
    for task in tasks.values():
        rows = sum(1 for _ in read_task_rows(task.file, task.kind))
        if rows != task.rows:
            raise UserError(f"{task.file}: {rows} rows, and {TASKS} says {task.rows}", "copy the file again")
        found[task.name] = {"kind": task.kind, "rows": rows}
    files = {path.name: path for path in (folder / TASKS, *(task.file for task in tasks.values()))}
    return Prepared(files, {"tasks": found})
