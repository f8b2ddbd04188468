"""Tokens that a model has no embeddings for, because they were added to its tokenizer only.

    unembedded(TokenizerFolder(folder), rows_of(config), template)
    ->  UserError: .../my-model: its chat template writes '<|im_end|>', token 280, and the model has 280 embeddings

A tokenizer may well have more tokens than a model has embeddings, as long as nothing uses them.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from nemotron_data.chat.confined import open_template
from nemotron_data.chat.spans import ANSWER, QUESTION
from nemotron_data.tokenizers.folder import TokenizerFolder
from nemotron_shared.system.atomic import read_json
from nemotron_shared.system.errors import UserError


def rows_of(config: Mapping[str, Any]) -> int | None:
    """Number of embeddings that a config.json states, of its text model if it has several; None if it does not."""
    text = config.get("text_config")
    known = [one.get("vocab_size") for one in (config, text) if isinstance(one, Mapping)]
    return next((number for number in known if isinstance(number, int)), None)


def no_embedding(what: str, token: str | None, number: int, rows: int, needed: int) -> UserError:
    """The error about a token beyond the embeddings.

    Args:
        what: what writes or holds the token.
        needed: embeddings that the tokenizer needs.
    """
    named = f"'{token}', token {number}" if token else f"token {number}"
    return UserError(
        f"{what} {named}, and the model has {rows} embeddings",
        f"give it embeddings for its tokenizer's tokens, with transformers: model.resize_token_embeddings({needed}),"
        " and save it; or use its own tokenizer, without added tokens",
    )


def ids_of(tokenizer: TokenizerFolder) -> int:
    """The largest id of a tokenizer plus one, read from its file without loading it; 0 without a file."""
    vocabulary, added = _ids(tokenizer)
    return max([*vocabulary, *added.values()], default=-1) + 1


def _ids(tokenizer: TokenizerFolder) -> tuple[Iterable[int], dict[str, int]]:
    """Ids of the vocabulary, and of the added tokens by their texts."""
    file = tokenizer.path / "tokenizer.json"
    try:
        found = read_json(file) if file.is_file() else {}
        known = (found.get("model") or {}).get("vocab") or {}
        ids = known.values() if isinstance(known, dict) else range(len(known))  # Unigram has a list
        return ids, {str(one["content"]): int(one["id"]) for one in found.get("added_tokens") or ()}
    except (AttributeError, KeyError, TypeError, ValueError, UserError):
        return (), {}  # whoever loads it says what is wrong


def unembedded(tokenizer: TokenizerFolder, rows: int, template: str | None) -> UserError | None:
    """The error about a token that every conversation or document has and the model has no embedding for, if any.

    Args:
        rows: the model's number of embeddings.
        template: Jinja source of the chat template; None for documents, which end with eos_token.
    """
    added = _ids(tokenizer)[1]
    beyond = {token: number for token, number in added.items() if number >= rows}
    if not beyond:
        return None
    if template is None:
        text, what = tokenizer.special_text("eos_token") or "", "documents end with"
    else:
        try:
            shown = open_template(template, "the chat template", **tokenizer.special_texts())
            text, what = shown.render([QUESTION, ANSWER, QUESTION], None, True), "its chat template writes"
        except UserError:
            return None  # it does not fit this conversation
    token = next((token for token in beyond if token in text), None)
    if token is None:
        return None
    return no_embedding(f"{tokenizer.path}: {what}", token, beyond[token], rows, max(beyond.values()) + 1)
