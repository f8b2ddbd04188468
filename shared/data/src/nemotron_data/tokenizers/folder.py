"""A tokenizer as data preparation needs it: a Hugging Face folder, read without transformers."""

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

from nemotron_data.chat.template import default_template, template_text
from nemotron_data.tokenizers.limits import require_no_growth
from nemotron_data.tokenizers.tiny import save_tokenizer
from nemotron_shared.atomic import read_json, write_text
from nemotron_shared.errors import UserError
from nemotron_shared.runtime.models.links import require_own_files
from nemotron_shared.runtime.models.small import require_small

TINY = "tiny"
AGAIN = "download or copy the file again"
UNKNOWN_REMEDY = "name an unknown token (unk_token, unk_id) in tokenizer.json that its vocabulary holds"
RARE = "\U0002a6a5 \ue000"
"""An ideograph and a character of private use: one of them is in no vocabulary but those made of bytes."""
ROLES = ("bos_token", "eos_token", "pad_token")
TOKENS_OF_TEMPLATES = (*ROLES, "unk_token")
"""The names of tokens that chat templates use."""
TEMPLATE = "chat_template.jinja"
FILES = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", TEMPLATE)


@contextmanager
def _silent() -> Generator[None]:
    """Nothing on standard error: a panic of the library prints its own trace there, past Python."""
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
    """Whatever the library raises, as one error. It has no class of its own, and its panics are no `Exception`."""
    try:
        with _silent():
            yield
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:
        raise UserError(f"{what}: {str(error)[:300]}", remedy) from error


@dataclass(frozen=True)
class TokenizerFolder:
    """`tokenizer.json` and what stands beside it."""

    path: Path

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer, ready to encode."""
        self.require()
        file = self.path / "tokenizer.json"
        require_no_growth(file)
        with _refused(f"{file}: no tokenizer", AGAIN):
            tokenizer = Tokenizer.from_file(str(file))
        tokenizer.no_truncation()  # the file may ask for either, and a row of any width
        tokenizer.no_padding()
        with _refused(f"{file}: cannot encode every text", UNKNOWN_REMEDY):
            tokenizer.encode(RARE, add_special_tokens=False)
        return tokenizer

    def require(self, key: str = "") -> None:
        """Raise `UserError` where there is no tokenizer; `key` is put before what it says."""
        if not (self.path / "tokenizer.json").is_file():
            what = f"{key}{self.path}: holds no tokenizer.json"
            raise UserError(what, "give a Hugging Face tokenizer folder, or 'tiny'")

    @cached_property
    def settings(self) -> dict[str, Any]:
        """`tokenizer_config.json`; nothing where there is none."""
        file = self.path / "tokenizer_config.json"
        settings = read_json(file) if file.is_file() else {}
        if not isinstance(settings, dict):
            raise UserError(f"{file}: not an object of settings", AGAIN)
        return settings

    @property
    def vocab_size(self) -> int:
        """Ids in use, special tokens included."""
        return self.tokenizer.get_vocab_size(with_added_tokens=True)

    def special_ids(self) -> dict[str, int]:
        """Ids of those of `bos_token`, `eos_token` and `pad_token` that the tokenizer names."""
        found = {role: self.tokenizer.token_to_id(text) for role, text in self.special_texts().items() if text}
        return {role: number for role, number in found.items() if number is not None}

    def special_texts(self) -> dict[str, str | None]:
        """Their texts, which chat templates use by these names; None for one that is not there."""
        return {role: self.special_text(role) for role in TOKENS_OF_TEMPLATES}

    def special_text(self, role: str) -> str | None:
        """Text of a special token, None where there is none."""
        token = self.settings.get(role)
        text = token.get("content") if isinstance(token, dict) else token
        if not isinstance(text, str | None) or text == "" or (text is None and token is not None):
            raise UserError(f"{self.path / 'tokenizer_config.json'}: {role} is not the text of a token", AGAIN)
        return text

    def chat_template(self) -> str:
        """The chat template's Jinja source.

        Raises:
            UserError: the tokenizer has none.
        """
        template = self.own_template()
        if template is None:
            raise UserError(f"{self.path}: the tokenizer has no chat template", "set data_prep.chat_template to a file")
        return template

    def own_template(self) -> str | None:
        """The same, None where there is none.

        Raises:
            UserError: it cannot be read, or there are several and none is the default.
        """
        file = self.path / TEMPLATE
        if file.is_file():
            return template_text(file)
        return default_template(self.settings.get("chat_template"), self.path / "tokenizer_config.json")

    def give_template(self, source: str) -> None:
        """Make `source` the chat template of this folder, and of every folder that the tokenizer is copied into.

        Programs take this file in place of what tokenizer_config.json says.
        """
        write_text(self.path / TEMPLATE, source)

    def is_named(self, number: int) -> bool:
        """Whether an id is of a token that text is never spelled with: one that was added, or the end of a text."""
        return number in self.tokenizer.get_added_tokens_decoder() or number == self.special_ids().get("eos_token")


def provide_tokenizer(model: str | None, into: Path) -> TokenizerFolder:
    """Put the tokenizer called `tiny`, or a copy of the user's own, into a folder beside the data.

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
    """Copy the files of a tokenizer, byte by byte, so that its digest stays the same through all stages."""
    into.mkdir(parents=True, exist_ok=True)
    if into.resolve() == source.resolve():
        return
    for name in FILES:
        if (source / name).is_file():
            shutil.copyfile(source / name, into / name)
