"""`apply_chat_template` of transformers, called by TRL, lm-eval and our servers, with limits on time and memory.

    confine_templates()
    tokenizer.apply_chat_template(messages)      renders in the process of nemotron_data.chat.confined

A library's templates are programs of whoever made the model. Here transformers keeps all that it does around them.
"""

from collections.abc import Generator
from contextlib import contextmanager
from functools import cache
from typing import Any

import jinja2
from transformers.utils import chat_template_utils

from nemotron_data.chat.confined import Template, open_template
from nemotron_data.chat.spans import Span
from nemotron_shared.errors import UserError

COMPILE = "_compile_jinja_template"
LABEL = "the model's chat template"
STOCK = getattr(chat_template_utils, COMPILE, None)
"""The function of transformers, as it was."""


class Compiled:
    """What transformers asks of a compiled template, and of the environment that it was compiled in."""

    def __init__(self, source: str) -> None:
        self.environment = self
        self._generated: list[Span] | None = None
        try:
            self._template: Template = open_template(source, LABEL)
        except UserError as error:
            raise jinja2.TemplateError(error.message) from error

    def render(self, messages: Any, tools: Any = None, add_generation_prompt: bool = False, **variables: Any) -> str:
        """The conversation as text.

        Raises:
            UserError: it takes too much.
            jinja2.TemplateError: it refuses the conversation; some libraries then try another one.
        """
        with _refusals():
            return self._template.render(messages, tools, add_generation_prompt, **variables)

    @contextmanager
    def activate_tracker(self, blocks: list[str], generated: list[Span]) -> Generator[None]:
        """While it lasts, `generate` notes which characters stand in {% generation %}: `assistant_masks` needs them.

        Args:
            blocks: the text so far; it is empty, because our text is one block.
        """
        self._generated = generated
        try:
            yield
        finally:
            self._generated = None

    def generate(self, messages: Any, tools: Any = None, **variables: Any) -> Generator[str]:
        """The conversation as text, in one block; errors as in `render`."""
        with _refusals():
            text, spans = self._template.render_with_blocks(messages, tools, **variables)
        if self._generated is not None:
            self._generated.extend(spans)
        yield text


@contextmanager
def _refusals() -> Generator[None]:
    """A template that refuses a conversation says so as transformers' own does."""
    try:
        yield
    except UserError as error:
        if "refuses" in error.message:
            raise jinja2.TemplateError(error.message) from error
        raise


def confine_templates() -> None:
    """Replace the one function of transformers that compiles templates, for this process.

    Raises:
        UserError: the installed version has none of that name.
    """
    if not hasattr(chat_template_utils, COMPILE):
        what = "the installed transformers compiles chat templates in another place, so they would have no limits"
        raise UserError(what, "install the version of it that uv.lock pins")
    setattr(chat_template_utils, COMPILE, _compiled)


_compiled = cache(Compiled)
