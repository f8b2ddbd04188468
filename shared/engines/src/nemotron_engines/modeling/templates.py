"""`apply_chat_template` of transformers, called by TRL, lm-eval and our servers, with limits on time and memory.

    confine_templates()
    tokenizer.apply_chat_template(messages)      renders in the process of nemotron_data.chat.confined

A chat template is a program by the model's author. Only its rendering changes; transformers does the rest as before.
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
"""transformers' original function."""


class Compiled:
    """The interface that transformers expects of a compiled template and its environment."""

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
            UserError: it exceeds a limit.
            jinja2.TemplateError: it refuses the conversation; some libraries then try a different one.
        """
        with _refusals():
            return self._template.render(messages, tools, add_generation_prompt, **variables)

    @contextmanager
    def activate_tracker(self, blocks: list[str], generated: list[Span]) -> Generator[None]:
        """In this context, `generate` records the characters inside {% generation %}, for `assistant_masks`.

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
    """Raise a template's refusal as the same error as in transformers."""
    try:
        yield
    except UserError as error:
        if "refuses" in error.message:
            raise jinja2.TemplateError(error.message) from error
        raise


def confine_templates() -> None:
    """Replace the one function of transformers that compiles templates, for this process.

    Raises:
        UserError: the installed version lacks this function.
    """
    if not hasattr(chat_template_utils, COMPILE):
        what = "the installed transformers compiles chat templates elsewhere, so they would run without limits"
        raise UserError(what, "install the version that uv.lock names: uv sync --all-packages")
    setattr(chat_template_utils, COMPILE, _compiled)


_compiled = cache(Compiled)
