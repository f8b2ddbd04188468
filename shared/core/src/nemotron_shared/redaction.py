"""What opens doors is taken out of every text on its way to a file or a screen: one function for all of them.

    redact("s3://key:word@host/x Authorization: Bearer hf_abcdefgh")    "s3://***@host/x Authorization: Bearer ***"

Secret are the values of environment variables with a telling name (HF_TOKEN, WANDB_API_KEY, DB_PASSWORD), those that a
config reads with `${oc.env:NAME}`, tokens by their form, credentials in URLs, and what follows `password=`.
"""

import os
import re
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

HIDDEN = "***"
TELLING = re.compile(
    r"(?:^|_)(?:TOKEN|SECRET|PASS(?:WORD|WD|PHRASE)?|PAT|CREDENTIALS?|AUTH|(?:API|ACCESS|PRIVATE|SECRET)_?KEY(?:_ID)?"
    r"|KEY)$|SECRET|PASSWORD",
    re.IGNORECASE,
)
SHORTEST = 6  # a shorter value stands in too many texts that have nothing to do with it
PATTERNS: tuple[tuple[re.Pattern[str], str], ...] = (
    # tokens that tell what they are by how they begin: hub, GitHub, GitLab, NVIDIA, AWS, Slack, OpenAI
    (re.compile(r"\b(?:hf_|gh[opsu]_|github_pat_|glpat-|nvapi-|AKIA|xox[abprs]-|sk-)[\w-]{8,}"), HIDDEN),
    # credentials of a URL; the revision in hf://org/name@v2 is none
    (re.compile(r"(\b(?!hf:)\w[\w+.-]*://)[^/@\s'\"]+@"), rf"\1{HIDDEN}@"),
    # a signed address carries its signature there; in the other schemes "?" is a sign of a glob
    (re.compile(r"(\bhttps?://[^\s?'\"]+)\?\S*[^\s).,;'\"]"), rf"\1?{HIDDEN}"),
    (re.compile(r"(?i)(\bauthorization['\"]?\s*[:=]\s*['\"]?(?:bearer|basic)\s+)[^\s'\"]+"), rf"\1{HIDDEN}"),
    # key=abc, "key": "abc" and --key abc; bos_token and its like are words of tokenizers
    (re.compile(
        r"(?i)((?<!bos_)(?<!eos_)(?<!pad_)(?<!unk_)(?<!sep_)(?<!cls_)(?<!mask_)"
        r"(?:token|secret|passw(?:or)?d|passphrase|api_?key|access_?key|credentials?)"
        r"(?:=['\"]?|['\"]:\s?['\"]))(?!null\b|none\b|\*\*\*|\$\{)[^\s'\",&}\]]{6,}"),
     rf"\1{HIDDEN}"),
    (re.compile(r"(?i)(--[\w-]*(?:token|secret|password|api-key)\s+)[^\s-]\S{5,}"), rf"\1{HIDDEN}"),
)  # fmt: skip
HARMLESS = re.compile(r"USER|LOGNAME|HOST(?:NAME)?|(?:SLURM|CUDA|NEMOTRON)_\w+")
"""Variables that a config may read and everybody may see."""
_read_by_config: dict[str, str] = {}


def keep_secret(name: str) -> None:
    """Treat a variable that a config reads as secret, but for a path or a number, which is what it says."""
    value = os.environ.get(name, "")
    if len(value) >= SHORTEST and not _is_plain(value) and not HARMLESS.fullmatch(name):
        _read_by_config[value] = name


def with_references(value: Any) -> Any:
    """A config as it may be written: with `${oc.env:NAME}` again for what it read from there, and nothing else secret.

    Who reads the file with OmegaConf, as our own commands do, gets the value from the environment.
    """

    def change(text: str) -> str:
        for secret, name in _read_by_config.items():
            text = text.replace(secret, f"${{oc.env:{name}}}")
        return redact(text)

    return _in_all_texts(value, change)


def _is_plain(value: str) -> bool:
    """Whether a value is a path or a number, which messages and manifests must be able to name."""
    return value.startswith(("/", "./", "../", "~")) or re.fullmatch(r"[\d.,e+-]+", value) is not None


def secret_values() -> list[str]:
    """The values to be hidden, in every spelling, the longest first: one may contain another."""
    telling = {value for name, value in os.environ.items() if TELLING.search(name) and not _is_plain(value)}
    known = {value for value in telling | set(_read_by_config) if len(value) >= SHORTEST}
    return sorted(known | {quote(value, safe="") for value in known}, key=len, reverse=True)


def redact(text: str) -> str:
    """The text with `***` for every secret."""
    for value in secret_values():
        text = text.replace(value, HIDDEN)
    for pattern, shown in PATTERNS:
        text = pattern.sub(shown, text)
    return text


def redact_values(value: Any) -> Any:
    """The same for all texts in a tree of plain values, as they stand in JSON and YAML."""
    return _in_all_texts(value, redact)


def _in_all_texts(value: Any, change: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        return {_in_all_texts(key, change): _in_all_texts(child, change) for key, child in value.items()}
    if isinstance(value, (list, tuple)):
        return [_in_all_texts(child, change) for child in value]
    return value
