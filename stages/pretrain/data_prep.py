"""Text to token shards: JSONL, Parquet, plain text or a blend in; Megatron bin/idx and blend.json out.

    python stages/pretrain/data_prep.py -c tiny
    python stages/pretrain/data_prep.py -c local data_prep.source=corpus.jsonl data_prep.tokenizer.model=FOLDER

A row is an object with a text, {"text": "Mira lives in Oster."}. It becomes one document of token ids with
the end-of-text id after it, in the split that the hash of its text decides. The way of a document:

    read -> split -> encode    by workers, a shard of the input each; see documents.py
         -> pack               documents lie back to back; pairs of files get their place, see pairs.py
         -> write              blend.json and stats.json
"""

import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from importlib.util import find_spec
from pathlib import Path

if not find_spec("nemotron_shared"):
    print(f"error: this Python has none of the project's packages; say: uv run python {sys.argv[0]}", file=sys.stderr)
    sys.exit(2)

from nemotron_data import decontaminate
from nemotron_data.decontaminate import Decontamination
from nemotron_data.encoders.masks import HELD, ControlTokens, announcement
from nemotron_data.formats.bin_idx import write_blend
from nemotron_data.prep.pipeline import open_inputs
from nemotron_data.prep.sampling import look_ahead
from nemotron_data.rejects import Refused
from nemotron_data.sources.datasets import Part, RowKind
from nemotron_data.sources.published import availability
from nemotron_data.sources.reading import Row
from nemotron_data.synthetic import pretrain_documents
from nemotron_data.tokenizers.folder import provide_tokenizer
from nemotron_shared.engine.spec import Outcome, Step, Task
from nemotron_shared.step.step import run_program
from nemotron_shared.system.atomic import write_json
from stages.pretrain.documents import DocumentWork, about_post_processor, require_usable, text_of, vocabulary_of
from stages.pretrain.pairs import collect_pairs, describe, merge_each, place_each, weigh
from stages.pretrain.schema import PretrainConfig, PretrainData

DIRECTORY = Path(__file__).resolve().parent
ROWS = RowKind("documents", DIRECTORY / "config", pretrain_documents, "documents")


def prepare(task: Task[PretrainConfig]) -> Outcome:
    """Write token shards for each data set and split, with counts of what was read and what was not used."""
    settings: PretrainData = task.config.data_prep
    output = task.run.fresh_output()

    # read: the files of each data set, cut into shards
    inputs = open_inputs(ROWS, settings, settings.synthetic_documents, task.run)

    # split, encode: every worker reads the documents of a shard, and writes the ids of each split back to back
    tokenizer = provide_tokenizer(settings.tokenizer.model, output / "tokenizer")
    encoder = inputs.choose_encoder(tokenizer, texts_of, settings.tokenizer.backend)
    vocabulary = vocabulary_of(encoder.reference, settings.tokenizer)
    if line := about_post_processor(encoder.reference, vocabulary, tokenizer):
        inputs.setting.announce(line)
    control, decontamination = ControlTokens.of(tokenizer.tokenizer), Decontamination.of(task.config, task.store)
    work = DocumentWork(inputs.parts, vocabulary, encoder.for_workers(), control, decontamination)
    prepared = inputs.process(work, output)
    if line := announcement(prepared.totals.counts[HELD], settings.control_tokens):
        inputs.setting.announce(line)
    prepared.require_few_lost(settings.max_lost, {})

    # pack: what the workers wrote is final, so it is linked into place; or merged, for readers of a single pair
    pairs = collect_pairs(prepared)
    pairs = merge_each(pairs, output) if settings.merge else place_each(pairs, output)

    # write
    write_blend(output / "blend.json", weigh(inputs.parts, pairs, output))
    metadata = describe(inputs.parts, pairs, prepared.totals, vocabulary)
    write_json(output / "stats.json", metadata)
    documents: Counter[str] = Counter()
    for pair in pairs:
        documents[pair.split] += pair.documents
    prepared.say_splits(documents)
    rows, tokens = prepared.totals.counts["rows"], metadata["total_tokens"]
    prepared.announce(f"{rows:,} rows, {tokens:,} tokens, {encoder.backend} {encoder.version}")
    decontamination.say(prepared)
    # the workers have read these files already, so that publishing need not
    digests = {
        pair.file(ending).relative_to(output).as_posix(): digest
        for pair in pairs
        for ending, digest in pair.sha256.items()
    }
    return Outcome(output, {**metadata, "encoder": encoder.as_metadata()}, digests=digests)


def texts_of(row: Row, part: Part[PretrainData]) -> Iterator[str]:
    """The text of a row, to try tokenizer libraries on; nothing of a row that has none."""
    with suppress(Refused):
        yield text_of(row, part.settings)


STEP = Step(
    __file__,
    __doc__,
    PretrainConfig,
    prepare,
    sources=lambda config: [
        *ROWS.sources(config.data_prep, config.data_prep.synthetic_documents),
        *decontaminate.sources(config),
    ],
    look=lambda config: look_ahead(ROWS.parts(config.data_prep), lambda part: lambda row: require_usable(row, part)),
    remarks=lambda values: availability(values, ROWS.config),
)
main = partial(run_program, STEP)

if __name__ == "__main__":
    sys.exit(main())
