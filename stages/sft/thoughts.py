"""A model is asked as it has learnt to answer: with a thought, or without one.

Where nobody says `enable_thinking`, the template of Nemotron 3 ends each prompt with `<think>`. Answers of rows without
thoughts are learnt after `<think></think>`, and a model that has learnt nothing else never saw the former.
"""

from nemotron_data.chat.confined import open_template
from nemotron_data.chat.spans import QUESTION
from nemotron_data.chat.thought import thinking_by_default, thinks
from nemotron_shared.errors import UserError
from stages.sft.encode import Rendering

THOUGHT = {True: "with a thought", False: "without a thought"}


def template_as_learnt(rendering: Rendering, with_thought: int, without: int) -> tuple[str | None, str | None]:
    """The template to ask the model with, where it has to be another, and what to tell of it.

    Args:
        with_thought, without: answers that are learnt so.
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
    """Whether a template prompts for a thought where nobody says so; None where its prompts leave it open."""
    try:
        template = open_template(source, rendering.label, **rendering.special_tokens)
        return thinks(template.render([QUESTION], None, True))
    except UserError:
        return None  # of this conversation it makes nothing
