"""Find the token that a chat template ends answers with; it must be a stop token wherever the model is served.

"...<|im_start|>assistant\\nZanswerz<|im_end|>\\n"   ->   EndToken(5, "<|im_end|>")
"""

from contextlib import suppress
from typing import NamedTuple

from nemotron_data.chat.confined import Template, open_template
from nemotron_data.chat.plain import ANSWER, QUESTION, SAID, TOOL
from nemotron_data.tokenizers.folder import TokenizerFolder
from nemotron_shared.errors import UserError


class EndToken(NamedTuple):
    """A token that ends an answer."""

    id: int
    token: str


def learnt_end(source: str, label: str, tokenizer: TokenizerFolder) -> EndToken | None:
    """Token that is trained right after a plain answer; None if the template prints none or does not fit plain answers.

    Args:
        source: the template's Jinja source.
        label: name in error messages.

    Raises:
        UserError: an answer ends with text that is not a single token, so generation could not stop at it; or the
            template needs an eos_token, and the tokenizer names none.
    """
    learnt = _behind_an_answer(open_template(source, label, **tokenizer.special_texts()))
    eos = tokenizer.special_text("eos_token")
    if learnt:
        number = tokenizer.tokenizer.encode(learnt, add_special_tokens=False).ids[0]
        if tokenizer.is_named(number):
            return EndToken(number, str(tokenizer.tokenizer.id_to_token(number)))
        what = f"{label}: answers end with '{learnt.split()[0]}', which is no token of the tokenizer {tokenizer.path}"
        own = f"a template whose answers end with '{eos}', " if eos else ""
        raise UserError(f"{what}: no program could stop there", f"set data_prep.chat_template to {own}or to plain")
    if learnt == "" and eos is None and "eos_token" in source:
        what = f"{label}: answers end with the tokenizer's eos_token, and {tokenizer.path} names none"
        raise UserError(what, "name its token for the end of a text as eos_token in tokenizer_config.json")
    return None


def _behind_an_answer(template: Template) -> str | None:
    """Text after the words of an answer that counts in the loss; None if it cannot be determined."""
    for tools in (None, [TOOL]):  # some templates require tools
        with suppress(UserError):
            text, spans = template.render_with_spans([QUESTION, ANSWER], tools)
            if SAID in text and spans:
                return text[text.rindex(SAID) + len(SAID) : spans[-1][1]].strip()
    return None
