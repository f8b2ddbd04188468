"""What suits a person's own chats where they do not say: split, pack size and chat template; then the training."""

from collections.abc import Iterator
from pathlib import Path

from nemotron_data.prep.reader import TOLERATE, or_tolerate, row_error
from nemotron_data.prep.sampling import first_rows, split_choice
from nemotron_data.rejects import Refused
from nemotron_data.split import bucket
from nemotron_data.tokenizers.folder import TokenizerFolder
from nemotron_engines.defaults import IsSaid, is_small, power_of_two, training_choices, weight_choices
from nemotron_shared.artifacts import Artifact
from nemotron_shared.config.files import Choice
from nemotron_shared.machine.machine import Machine
from nemotron_shared.system.errors import UserError
from stages.sft.encode import SALT, Rendering
from stages.sft.schema import SFTConfig, SFTData

OURS, MARKS = "nano3", ("<|im_start|>", "<|im_end|>")
PLAIN = "plain"
"""For any tokenizer that has a token for the end of a text."""


def data_choices(config: SFTConfig, model: Path) -> list[Choice]:
    """Settings of the data preparation.

    Raises:
        UserError: the source cannot be read, or one of its first rows cannot be used.
    """
    settings, tokenizer, found = config.data_prep, TokenizerFolder(model), []
    template = settings.chat_template
    if template is None and tokenizer.own_template() is None:
        template, why = _template_for(tokenizer)
        found.append(Choice("data_prep.chat_template", template, f"the model's tokenizer has none{why}"))
    rendering = Rendering.of(tokenizer, template)
    rendering.learnt_end(tokenizer)  # an error here comes before any work
    rendering.require_embedded(tokenizer, model)
    looked_at = [*_conversations(settings, rendering, tokenizer)]
    if not looked_at:
        remedy = "see why, row by row: leave data_prep.on_bad_row and data_prep.used_in_filter out"
        raise UserError(f"{settings.source}: none of its first rows is a conversation that may be used", remedy)
    longest = max(tokens for _, tokens in looked_at)
    looked = f"the longest of {len(looked_at):,} conversations has {longest:,} tokens"
    pack = Choice("data_prep.pack_size", power_of_two(longest, model), looked)
    return [*found, split_choice([place for place, _ in looked_at], "conversations"), pack]


def engine_choices(config: SFTConfig, model: Path, machine: Machine, is_said: IsSaid) -> list[Choice]:
    """Of the settings of the training, those that do not follow from the packed rows."""
    return weight_choices(config, model, machine, is_said)


def train_choices(config: SFTConfig, model: Path, data: Artifact, machine: Machine, is_said: IsSaid) -> list[Choice]:
    """Settings of the training; `is_said` tells which of the config's values somebody has set."""
    rows = data.manifest.metadata["splits"]["train"]["packed_rows"]
    return training_choices(config, model, rows, config.data_prep.pack_size, machine, f"{rows:,} packed rows", is_said)


def may_train_longer(model: Path) -> bool:
    """Whether a second, longer training may follow unasked: that of a small model takes minutes."""
    return is_small(model)


def _template_for(tokenizer: TokenizerFolder) -> tuple[str, str]:
    """The shipped template whose marks a tokenizer has, and why it is not the usual one."""
    marks = [tokenizer.tokenizer.token_to_id(mark) for mark in MARKS]
    if all(number is not None and tokenizer.is_named(number) for number in marks):
        return OURS, ""
    return PLAIN, f", and no token {' or '.join(MARKS)}"


def _conversations(settings: SFTData, rendering: Rendering, tokenizer: TokenizerFolder) -> Iterator[tuple[float, int]]:
    """For each of the first conversations, what decides its split, and the tokens of its longest text.

    A row that would end the preparation ends the choice already.
    """
    renderer = rendering.renderer(settings)
    for row in first_rows(settings):
        if not renderer.wants(row):
            continue
        try:
            conversation = renderer.read(row)
            texts = renderer.texts_of(renderer.guarded(conversation))
            place = bucket(renderer.key_of(row, conversation), SALT)
        except UserError as error:
            if settings.on_bad_row == "error":
                raise row_error(row, error.message, error.remedy or TOLERATE) from error
            continue
        except Refused as refused:
            if settings.on_bad_row == "error":
                raise row_error(row, str(refused), or_tolerate(refused.finding.remedy)) from refused
            continue
        tokens = [len(tokenizer.tokenizer.encode(one.text, add_special_tokens=False).ids) for one in texts]
        if tokens:
            yield place, max(tokens)
