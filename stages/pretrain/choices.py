"""What suits a person's own text where they do not say: split and length of rows; then the training."""

from pathlib import Path

from nemotron_data.prep.reader import or_tolerate, row_error
from nemotron_data.prep.sampling import first_rows, split_choice
from nemotron_data.rejects import Refused
from nemotron_data.sources.datasets import split_key
from nemotron_data.split import bucket, document_bucket
from nemotron_data.tokenizers.folder import TokenizerFolder
from nemotron_engines.defaults import IsSaid, power_of_two, training_choices
from nemotron_shared.artifacts import Artifact
from nemotron_shared.config.files import Choice
from nemotron_shared.machine.machine import Machine
from nemotron_shared.system.errors import UserError
from stages.pretrain.documents import SALT, TEXT_FIELD, text_of
from stages.pretrain.schema import PretrainConfig

FEWEST_ROWS = 8
"""A length of rows leaves at least so many of them to train on."""


def data_choices(config: PretrainConfig, model: Path) -> list[Choice]:
    """Settings of the data preparation, and the length of rows, which training asks for.

    Raises:
        UserError: the source cannot be read, or one of its first rows has no text.
    """
    settings, tokenizer = config.data_prep, TokenizerFolder(model).tokenizer
    texts, places = [], []
    for row in first_rows(settings):
        try:
            texts.append(text_of(row, settings))
            key = split_key(row.value, settings, "")
            places.append(bucket(key, SALT) if key else document_bucket(texts[-1]))
        except Refused as refused:
            if settings.on_bad_row == "error":
                raise row_error(row, str(refused), or_tolerate(refused.finding.remedy)) from refused
    if not texts:
        raise UserError(
            f"{settings.source}: none of its first rows has a text", f"name the field that holds it: {TEXT_FIELD}=NAME"
        )
    lengths = [len(tokenizer.encode(text, add_special_tokens=False).ids) for text in texts]
    longest = min(max(lengths), sum(lengths) // FEWEST_ROWS)
    looked = f"the longest of {len(lengths):,} documents has {max(lengths):,} tokens, all of them {sum(lengths):,}"
    return [split_choice(places, "documents"), Choice("train.seq_length", power_of_two(longest, model), looked)]


def engine_choices(config: PretrainConfig, model: Path, machine: Machine, is_said: IsSaid) -> list[Choice]:
    """None: text is learnt with all weights."""
    return []


def train_choices(
    config: PretrainConfig, model: Path, data: Artifact, machine: Machine, is_said: IsSaid
) -> list[Choice]:
    """Settings of the training; `is_said` tells which of the config's values somebody has set."""
    tokens = data.manifest.metadata["splits"]["train"]["tokens"]
    rows = max(1, tokens // config.train.seq_length)
    return training_choices(
        config, model, rows, config.train.seq_length, machine, f"{tokens:,} tokens", is_said, text=True
    )


def may_train_longer(model: Path) -> bool:
    """Never unasked: text has no answers that would show that it was not learnt."""
    return False
