"""How a model folder generates: generation_config.json, end tokens, and chat templates within limits.

    confine_templates()
    tokenizer.apply_chat_template(messages)      renders in the process of nemotron_data.chat.confined

A chat template is a program by the model's author, so transformers, and with it TRL, lm-eval and our servers, may
only render it with limits on time and memory.
"""

from collections.abc import Generator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import jinja2
from transformers import GenerationConfig
from transformers.utils import chat_template_utils

from nemotron_data.chat.confined import Template, open_template
from nemotron_data.chat.spans import Span
from nemotron_shared.models.folder import FILE, IDS, acting, config_of
from nemotron_shared.system.atomic import read_json
from nemotron_shared.system.errors import UserError

HOTTEST = 100.0
"""Beyond this temperature, all tokens are practically equally likely."""
MOST = {"temperature": HOTTEST, "top_p": 1.0, "min_p": 1.0, "top_k": 1e9, "repetition_penalty": 100.0}
"""The settings that we read, with the largest meaningful value."""
REMEDY = "correct the value, or remove the key"


def require_generation(folder: Path) -> None:
    """Check the settings in both files that affect a model's answers.

    Raises:
        UserError: a bad value; the message gives file and key.
    """
    _require_ids(folder / "config.json", config_of(folder))
    file = folder / FILE
    if not file.is_file():
        return
    values = read_json(file)
    if not isinstance(values, dict):
        raise UserError(f"{file}: not a mapping of settings", "correct the file, or remove it")
    _require_ids(file, values)
    if not isinstance(values.get("do_sample"), bool | None):
        raise UserError(f"{file}: do_sample must be true or false", REMEDY)
    for key, most in MOST.items():
        value = values.get(key)
        if value is not None and (type(value) not in (int, float) or not 0 <= value <= most):
            raise UserError(f"{file}: {key} must be a number from 0 to {most:g}", REMEDY)
    if type(values.get("top_k")) is float:
        raise UserError(f"{file}: top_k must be a whole number", REMEDY)
    try:
        GenerationConfig.from_pretrained(folder, local_files_only=True)
    except Exception as error:  # the library checks few of its settings before using them
        raise UserError(f"{file}: unusable: {type(error).__name__}: {error}", REMEDY) from error


def unused(values: dict[str, Any]) -> list[str]:
    """Settings of a generation_config.json that change answers in transformers and that our server does not support."""
    return [key for key in acting(values) if key not in MOST]


def alone(model: Any) -> GenerationConfig:
    """Settings for `model.generate` that have its special tokens, and nothing else of what its folder asks for.

    `generate(**settings)` of transformers 5.23 takes what is not given from `model.generation_config`, so a model that
    is to be asked by other settings alone gets these in its place.
    """
    return GenerationConfig(**{name: getattr(model.generation_config, name) for name in IDS})


def ends_of(model: Any, tokenizer: Any) -> set[int]:
    """Stop token ids from all config files."""
    found: set[int] = set()
    for source in (getattr(model, "generation_config", None), model.config, tokenizer):
        ids = getattr(source, "eos_token_id", None)
        found |= set(ids) if isinstance(ids, list | tuple) else set() if ids is None else {ids}
    return found


def embeddings_of(model: Any) -> int | None:
    """Number of token embeddings; None where the model does not tell."""
    try:
        return int(model.get_input_embeddings().weight.shape[0])
    except (AttributeError, NotImplementedError):
        return None


def _require_ids(file: Path, values: dict[str, Any]) -> None:
    for key in ("bos_token_id", "eos_token_id", "pad_token_id"):
        value = values.get(key)
        ids = value if isinstance(value, list) else [] if value is None else [value]
        if not all(type(number) is int for number in ids):
            raise UserError(f"{file}: {key} must be a token id or a list of token ids", REMEDY)


# `apply_chat_template` of transformers, with limits on time and memory.


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
