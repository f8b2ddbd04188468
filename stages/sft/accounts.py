"""Messages about conversations: which format was found, what happened to the rows, how to lose fewer.

format: alpaca, from the fields instruction, input, output (another: data_prep.format=NAME)
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from nemotron_data.chat.confined import open_template
from nemotron_data.chat.formats import AUTO, CHAT_FORMATS
from nemotron_data.chat.shown import told
from nemotron_data.chat.spans import QUESTION
from nemotron_data.chat.thought import thinking_by_default, thinks
from nemotron_data.encoders.masks import HELD, announcement
from nemotron_data.prep.pipeline import Inputs, Prepared
from nemotron_data.sources.datasets import Part, is_synthetic
from nemotron_data.sources.detect import FORMATS_THERE, detect_files, head_rows, marks_in, turn_keys, unread_in
from nemotron_data.sources.input_file import InputFile
from nemotron_shared.models.folder import context_of
from nemotron_shared.system.errors import UserError
from stages.sft.encode import (
    ANSWER_CUT,
    CALLS_IN_TEXT,
    HIDDEN,
    NO_ANSWER_WITHIN,
    ROWS_OF,
    TOO_LONG,
    UNLIKE_LAST,
    UNTOLD,
    Conversations,
    Rendering,
)
from stages.sft.schema import SFTData

DOCUMENTS = (
    "pretrain on them: nemotron super3 data prep pretrain -c local data_prep.source=FILE.jsonl"
    " data_prep.tokenizer.model=./FOLDER; or name the fields of the chats: data_prep.prompt_field=..."
    " data_prep.response_field=..."
)

ADVICE = {
    UNTOLD: "no prompt describes these tools to the model; name their field: data_prep.tools_field=NAME",
    CALLS_IN_TEXT: "learnt as written, not in the chat template's own form of calls",
}
"""By count, what people should know of rows that are trained on as they are."""
OF_TURNS = {
    "auto": "each question becomes a separate sequence, like a prompt (data_prep.split_turns=never: one sequence)",
    "never": "learnt in a form that no prompt asks for (data_prep.split_turns=auto separates them)",
}


def formats_found(inputs: Inputs[SFTData]) -> Iterator[str]:
    """One line for each data set whose format no setting names.

    Raises:
        UserError: its rows have no format that is known, or are documents.
    """
    for number, part in enumerate(inputs.parts):
        if found := format_found(part, inputs.files(number)):
            name = f" of {part.name}" if len(inputs.parts) > 1 else ""
            yield f"format{name}: {found} (another: data_prep.format=NAME)"


def format_found(part: Part[SFTData], files: Sequence[InputFile]) -> str | None:
    """The format of a data set and the fields that are not read; None where a setting names it.

    Raises:
        UserError: its rows have no format that is known, or are documents.
    """
    if part.settings.format != AUTO or is_synthetic(part.settings.source):
        return None
    named = Conversations(part.settings)
    used = part.settings.used_in_field if part.settings.used_in_filter is not None else None
    also = [name for name in (part.settings.tools_field, part.settings.key_field, used) if name is not None]
    if named.format == AUTO:
        found = detect_files(files, also)
        reason, unread, in_turns, marks = found.reason, found.unread, found.in_turns, found.marks
        if found.kind == "text":
            what = f"{part.settings.source}: {reason}: documents, not chats"
            raise UserError(what, f"{DOCUMENTS}\n  {FORMATS_THERE}")
    else:
        fields = tuple(str(getattr(named.fields, key)) for key in CHAT_FORMATS[named.format].settings)
        rows = list(head_rows(files))
        reason, unread = (
            f"{named.format}, from the fields {', '.join(fields)}",
            unread_in(rows, [*fields, *also], named.format),
        )
        in_turns, marks = turn_keys(rows, fields), marks_in(rows, fields)
    reason += f"; not read: {', '.join(unread)}" if unread else ""
    reason += f"; what is learnt is read from: {', '.join(marks)}" if marks else ""
    return f"{reason}; left to the chat template, in turns: {', '.join(in_turns)}" if in_turns else reason


def about_rows(prepared: Prepared[SFTData], settings: SFTData) -> Iterator[str]:
    """What happened to rows that were neither cut nor dropped."""
    counts = prepared.totals.counts
    formats = Counter({name: counts[f"{ROWS_OF}{name}"] for name in CHAT_FORMATS if counts[f"{ROWS_OF}{name}"]})
    if len(formats) > 1:
        yield "formats: " + ", ".join(f"{count:,} rows of {name}" for name, count in formats.most_common())
    if line := announcement(counts[HELD], settings.control_tokens):
        yield line
    for name in sorted(name for name in counts if name.endswith(HIDDEN) and counts[name]):
        yield f"{told(name.removesuffix(HIDDEN).split(', '))}: {counts[name]:,} rows lose theirs"
    # demonstrations that are made here describe no tools on purpose, and have no field to name
    advised = {} if is_synthetic(settings.source) else ADVICE
    for name, advice in (*advised.items(), (UNLIKE_LAST, OF_TURNS[settings.split_turns])):
        if counts[name]:
            yield f"{counts[name]:,} {name}: {advice}"


def mends(prepared: Prepared[SFTData], settings: SFTData) -> dict[str, str]:
    """The setting that helps, by the reason of a loss."""
    fit: Counter[int] = Counter()
    for shard in prepared.shards:
        fit.update({int(power): count for power, count in shard.figures["fit"].items()})
    most = settings.max_lost * fit.total() / 2
    longer = {n: sum(count for power, count in fit.items() if power > n) for n in range(3, 64)}
    power = next(n for n in longer if 2**n > settings.pack_size and longer[n] <= most)
    context = context_of(Path(str(settings.tokenizer.model)))
    size = f"let longer rows in: data_prep.pack_size={2**power}"
    if context is not None and context <= settings.pack_size:
        size = f"the model's context is {context} tokens: shorten the rows, or take a model with a longer one"
    elif context is not None and context < 2**power:
        size = f"let longer rows in, up to the model's context: data_prep.pack_size={context}"
    template = "give a template that shows them, such as nano3 or a Jinja file: data_prep.chat_template=nano3"
    hidden = {reason: template for reason in prepared.totals.cut if reason.endswith(HIDDEN)}
    return {NO_ANSWER_WITHIN: size, ANSWER_CUT: size, TOO_LONG: size, **hidden}


THOUGHT = {True: "with a thought", False: "without a thought"}


def template_as_learnt(rendering: Rendering, with_thought: int, without: int) -> tuple[str | None, str | None]:
    """The template to prompt the model with, if it must be another one, and a line about it.

    A model answers as it has learnt to: with a thought, or without one. Unless somebody sets `enable_thinking`, the
    template of Nemotron 3 ends each prompt with `<think>`. Answers of rows without thoughts are learnt after
    `<think></think>`, and a model that has learnt nothing else never saw the former.

    Args:
        with_thought, without: numbers of answers that are learnt so.
    """
    default, found = _wants(rendering, rendering.template), {True: with_thought, False: without}
    if default is None or not found[not default]:
        return None, None
    learnt, asked = THOUGHT[not default], THOUGHT[default]
    if found[default]:
        how = f"{found[not default]:,} of {with_thought + without:,} answers are learnt {learnt}"
        return (
            None,
            f"{how}; unless somebody says enable_thinking={str(not default).lower()}, the model answers {asked}",
        )
    changed = thinking_by_default(rendering.template, not default)
    if _wants(rendering, changed) is default:
        what = f"all answers are learnt {learnt}, and {rendering.label} always asks for answers {asked}"
        return None, f"WARNING: {what}: the model never saw the prompts that it will be asked with"
    how = f"unless somebody says enable_thinking={str(default).lower()}, the model answers so, too"
    return changed, f"all answers are learnt {learnt}; {how}"


def _wants(rendering: Rendering, source: str) -> bool | None:
    """Whether a template prompts for a thought by default; None if its prompts leave it open."""
    try:
        template = open_template(source, rendering.label, **rendering.special_tokens)
        return thinks(template.render([QUESTION], None, True))
    except UserError:
        return None  # it does not fit this conversation
