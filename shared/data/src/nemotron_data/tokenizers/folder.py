"""Tokenizer for data preparation: a Hugging Face folder, read without transformers."""

import os
import shutil
import sys
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from nemotron_data.chat.template import DEFAULT, default_template, template_text
from nemotron_data.tokenizers.limits import require_no_growth
from nemotron_data.tokenizers.tiny import save_tokenizer
from nemotron_shared.models.folder import MORE_TEMPLATES, require_own_files, require_small
from nemotron_shared.system.atomic import read_json, write_text
from nemotron_shared.system.errors import UserError

TINY = "tiny"
AGAIN = "download or copy the file again"
UNKNOWN_REMEDY = "name an unknown token (unk_token, unk_id) in tokenizer.json that its vocabulary holds"
RARE = "\U0002a6a5 \ue000"
"""An ideograph and a private-use character; only byte-level vocabularies contain both."""
ROLES = ("bos_token", "eos_token", "pad_token")
TOKENS_OF_TEMPLATES = (*ROLES, "unk_token")
"""Names of tokens that chat templates use."""
TEMPLATE = "chat_template.jinja"
TOOLS = "tool_use"
"""Name of a template for conversations with tools."""
FILES = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", TEMPLATE)


@contextmanager
def _silent() -> Generator[None]:
    """Suppress standard error: when the library panics, it prints a trace there, bypassing Python."""
    sys.stderr.flush()
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


@contextmanager
def _refused(what: str, remedy: str) -> Generator[None]:
    """Turn any failure of the library into one error. It has no exception class, and its panics are not `Exception`."""
    try:
        with _silent():
            yield
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:
        raise UserError(f"{what}: {str(error)[:300]}", remedy) from error


@dataclass(frozen=True)
class TokenizerFolder:
    """`tokenizer.json` and the files next to it."""

    path: Path

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer, ready to encode."""
        self.require()
        file = self.path / "tokenizer.json"
        require_no_growth(file)
        with _refused(f"{file}: no tokenizer", AGAIN):
            tokenizer = Tokenizer.from_file(str(file))
        tokenizer.no_truncation()  # the file may enable either, and rows may have any length
        tokenizer.no_padding()
        with _refused(f"{file}: cannot encode every text", UNKNOWN_REMEDY):
            tokenizer.encode(RARE, add_special_tokens=False)
        return tokenizer

    def require(self, key: str = "") -> None:
        """Raise `UserError` without a tokenizer; `key` is prepended to the message."""
        if not (self.path / "tokenizer.json").is_file():
            what = f"{key}{self.path}: holds no tokenizer.json"
            raise UserError(what, "give a Hugging Face tokenizer folder, or 'tiny'")

    @cached_property
    def settings(self) -> dict[str, Any]:
        """Contents of `tokenizer_config.json`; empty without the file."""
        file = self.path / "tokenizer_config.json"
        settings = read_json(file) if file.is_file() else {}
        if not isinstance(settings, dict):
            raise UserError(f"{file}: not an object of settings", AGAIN)
        return settings

    @property
    def vocab_size(self) -> int:
        """Number of ids, special tokens included."""
        return self.tokenizer.get_vocab_size(with_added_tokens=True)

    def special_ids(self) -> dict[str, int]:
        """Ids of `bos_token`, `eos_token` and `pad_token`, if the tokenizer names them."""
        found = {role: self.tokenizer.token_to_id(text) for role, text in self.special_texts().items() if text}
        return {role: number for role, number in found.items() if number is not None}

    def special_texts(self) -> dict[str, str | None]:
        """Texts of special tokens, under the names that chat templates use; None for missing ones."""
        return {role: self.special_text(role) for role in TOKENS_OF_TEMPLATES}

    def special_text(self, role: str) -> str | None:
        """Text of a special token, or None."""
        token = self.settings.get(role)
        text = token.get("content") if isinstance(token, dict) else token
        if not isinstance(text, str | None) or text == "" or (text is None and token is not None):
            raise UserError(f"{self.path / 'tokenizer_config.json'}: {role} is not the text of a token", AGAIN)
        return text

    def chat_template(self) -> str:
        """Jinja source of the chat template.

        Raises:
            UserError: the tokenizer has none.
        """
        template = self.own_template()
        if template is None:
            remedy = "set data_prep.chat_template: to plain, which suits any tokenizer with an eos_token, or to a file"
            raise UserError(f"{self.path}: the tokenizer has no chat template", remedy)
        return template

    def own_template(self) -> str | None:
        """Jinja source of the chat template, or None.

        Raises:
            UserError: unreadable, or several templates without a default.
        """
        file = self.path / TEMPLATE
        if file.is_file():
            return template_text(file)
        return default_template(self.settings.get("chat_template"), self.path / "tokenizer_config.json")

    def templates_left_out(self) -> str | None:
        """The named templates besides the one that is used, in words; None if there are no others.

        `default` shows conversations with tools as well, in training, prompts and answers alike. transformers (5.23)
        and vLLM take a template named `tool_use` for these, if there is one.
        """
        listed = [] if (self.path / TEMPLATE).is_file() else self.settings.get("chat_template")
        names = {str(one.get("name")) for one in listed if isinstance(one, dict)} if isinstance(listed, list) else set()
        names |= {file.stem for file in self.path.glob(f"{MORE_TEMPLATES}/*.jinja")}
        if not (others := sorted(names - {DEFAULT})):
            return None
        told = f"its chat template {', '.join(others)} is left out: {DEFAULT} is used"
        return f"{told} with tools, too, for which transformers and vLLM take {TOOLS}" if TOOLS in others else told

    def give_template(self, source: str, *, alone: bool = False) -> None:
        """Make `source` the chat template of this folder, and of every folder that the tokenizer is copied into.

        Programs prefer this file over the template in tokenizer_config.json.

        Args:
            alone: drop further templates, which programs would take for conversations with tools.
        """
        write_text(self.path / TEMPLATE, source)
        if alone:
            shutil.rmtree(self.path / MORE_TEMPLATES, ignore_errors=True)

    def is_named(self, number: int) -> bool:
        """Whether an id belongs to an added token or to the end-of-text token, which ordinary text never encodes to."""
        return number in self.tokenizer.get_added_tokens_decoder() or number == self.special_ids().get("eos_token")


def provide_tokenizer(model: str | None, into: Path) -> TokenizerFolder:
    """Put the tokenizer called `tiny`, or a copy of the user's own, into a folder next to the data.

    Raises:
        UserError: `model` is None, or a folder without a tokenizer.
    """
    if model is None:
        raise UserError("data_prep.tokenizer.model is not set", "give a Hugging Face tokenizer folder, or 'tiny'")
    if model == TINY:
        save_tokenizer(into)
        return TokenizerFolder(into)
    TokenizerFolder(Path(model)).require()
    require_own_files(Path(model))
    require_small(Path(model))
    copy_tokenizer(Path(model), into)
    return TokenizerFolder(into)


def copy_tokenizer(source: Path, into: Path) -> None:
    """Copy tokenizer files byte by byte, so that the digest stays the same through all stages."""
    into.mkdir(parents=True, exist_ok=True)
    if into.resolve() == source.resolve():
        return
    for name in FILES:
        if (source / name).is_file():
            shutil.copyfile(source / name, into / name)
    for file in sorted(source.glob(f"{MORE_TEMPLATES}/*.jinja")):
        (into / MORE_TEMPLATES).mkdir(exist_ok=True)
        shutil.copyfile(file, into / MORE_TEMPLATES / file.name)
