"""Redact secrets from everything we print or write.

    redact("s3://key:word@host/x Authorization: Bearer abcdefgh")    "s3://***@host/x Authorization: Bearer ***"

Secrets are the values of environment variables with a telling name (HF_TOKEN, WANDB_API_KEY, DB_PASSWORD), those a
config reads with `${oc.env:NAME}`, tokens with a known format, credentials in URLs, and the value of `password=`.
"""

import json
import os
import re
from collections.abc import Callable
from functools import cache, partial
from typing import Any
from urllib.parse import quote

HIDDEN = "***"
WHICH = r"\d*(?:_(?:\d+|[A-Z]|PROD(?:UCTION)?|DEV|TEST|STAG(?:E|ING)|LIVE|OLD|NEW|MAIN|BACKUP))?$"
"""Suffix that distinguishes variables of the same kind: `HF_TOKEN_2`, `OPENAI_KEY_PROD`."""
TELLING = re.compile(
    r"(?:^|_)(?:TOKEN|SECRET|(?:SSH)?PASS(?:WORD|WD|PHRASE)?|PAT|PW|CREDENTIALS?|AUTH|JWT|COOKIE"
    rf"|(?:API|ACCESS|PRIVATE|SECRET)_?KEY(?:_ID)?|KEY){WHICH}|_PWD{WHICH}|SECRET|PASSWORD",
    re.IGNORECASE,
)
TELLING_OF_TEXT = re.compile(r"(?:^|_)TOKENS$", re.IGNORECASE)
"""Secret unless the value is a number: "tokens" may be a count."""
SHORTEST = 6  # a shorter value appears in too many unrelated texts
# a signed URL carries its signature in the query; in other schemes "?" is a glob character
SIGNED = (re.compile(r"(?i)(\b(?:https?|wss?)://[^\s?'\"]{1,4000})\?\S*[^\s).,;'\"]"), rf"\1?{HIDDEN}")
# lengths are bounded, so that a text of a thousand addresses takes no time that grows with its square
PATTERNS: tuple[tuple[re.Pattern[str], str], ...] = (
    # tokens recognised by prefix and length: hub, GitHub, GitLab, NVIDIA, AWS, W&B,
    # Slack, Docker, npm, Google, OpenAI. Paths, fields, data sets and digests
    # with the same prefix are not redacted.
    (re.compile(
        r"(?<![A-Za-z0-9])(?:hf_(?![0-9a-f]+(?![A-Za-z0-9]))[A-Za-z0-9]{30,}|gh[oprsu]_[A-Za-z0-9]{36,}"
        r"|github_pat_[A-Za-z0-9]{22}_[A-Za-z0-9]{59}|glpat-(?=[\w-]*[A-Z0-9])[\w-]{20,}|nvapi-[\w-]{60,}"
        r"|A[KS]IA[A-Z0-9]{16}(?![A-Za-z0-9])|wandb_v\d_\w{40,}|xox[abeprs]-\d[\w-]{20,}"
        r"|dckr_[op]at_[A-Za-z0-9-]{20,}|npm_[A-Za-z0-9]{36,}|AIza[\w-]{35,}|ya29\.[\w-]{20,}"
        r"|sk-(?:[A-Za-z0-9]{40,}|(?:proj|svcacct|admin|ant-\w+)-[\w-]{40,}))"),
     HIDDEN),
    # credentials in a URL, with any password that is not a port and a path; then a user name alone. The revision in
    # hf://org/name@v2 is not one.
    (re.compile(
        r"(\b\w[\w+.-]{0,30}://)(?!\[)[^/@\s'\":]{0,300}:(?!\d+(?:[/,?#]|$))[^\s'\"]{0,300}@(?=[\w\[])"),
     rf"\1{HIDDEN}@"),
    (re.compile(r"(\b(?!hf:)\w[\w+.-]{0,30}://)[^/@\s'\"]{1,1000}@"), rf"\1{HIDDEN}@"),
    (re.compile(r"(\b(?:x-access-token|oauth2|gitlab-ci-token|__token__):)(?!\*\*\*)[^\s@'\"]+(?=@)"), rf"\1{HIDDEN}"),
    SIGNED,
    (re.compile(
        r"(?i)([?&](?:sig|(?:x-(?:amz|goog)-)?signature|x-amz-security-token)=)(?!\*\*\*)[^\s&'\"]+"),
     rf"\1{HIDDEN}"),
    (re.compile(
        r"(?i)(\bauthorization['\"]?\s*[:=]\s*['\"]?(?:bearer|basic|token|api-?key)\s+)[^\s'\"]+"),
     rf"\1{HIDDEN}"),
    # key=abc, "key": "abc" and --key abc; bos_token and the like are settings of tokenizers
    (re.compile(
        r"(?i)((?<!bos_)(?<!eos_)(?<!pad_)(?<!unk_)(?<!sep_)(?<!cls_)(?<!mask_)"
        r"(?:token|secret|passw(?:or)?d|passphrase|(?:api|access|private)[_-]?key|credentials?)"
        r"(?:=['\"]?|['\"]:\s?['\"]))(?!null\b|none\b|\*\*\*|\$\{)[^\s'\",&}\]]{6,}"),
     rf"\1{HIDDEN}"),
    # the short names, alone or in a longer key: db_pwd=abc, "dbPwd": "abc"; but not pwd=/a/folder or pat=*.json
    (re.compile(
        r"((?:(?<![A-Za-z])(?:pwd?|PWD?|pat|PAT)|(?<=[a-z0-9])P(?:wd?|at))(?:=['\"]?|['\"]:\s?['\"]))"
        r"(?!null\b|none\b|\*|\$|[/.~])[^\s'\",&}\]]{6,}"),
     rf"\1{HIDDEN}"),
    # key: abc in YAML, X-Api-Key: abc in HTTP and key = abc in ~/.aws/credentials, if the value contains a digit
    (re.compile(
        r"(?i)((?:[_-]token|secret|passw(?:or)?d|passphrase|(?:api|access|private)[_-]?key)(?::\s+|\s+=\s+))"
        r"(?=[^\s]*\d)(?!\*\*\*|\$\{)[^\s'\",&}\]]{8,}"),
     rf"\1{HIDDEN}"),
    (re.compile(r"(?i)(\bbearer\s+)(?!\*\*\*)[\w.~+/=-]{16,}"), rf"\1{HIDDEN}"),
    (re.compile(r"\beyJ[\w-]{10,}\.eyJ[\w-]{10,}\.[\w-]+"), HIDDEN),  # a JSON web token
    (re.compile(r"(-----BEGIN [A-Z ]*PRIVATE KEY-----).*?(?:-----END|\Z)", re.DOTALL), rf"\1{HIDDEN}-----END"),
    (re.compile(r"(\blogin\s+\S+\s+password\s+)\S+"), rf"\1{HIDDEN}"),  # ~/.netrc
    (re.compile(r"(\bwandb login (?:--\w+ )*)[0-9a-f]{40}"), rf"\1{HIDDEN}"),
    (re.compile(r"(?i)(--[\w-]*(?:token|secret|password|api-key)\s+)[^\s-]\S{5,}"), rf"\1{HIDDEN}"),
)  # fmt: skip
EXPANSION = re.compile(r"\$(?:\([^()]*\)|\{[^{}]*\}|\w+)|`[^`]*`")
"""Shell expansions: a variable, or a command's output."""
HARMLESS = re.compile(r"USER|LOGNAME|HOST(?:NAME)?|(?:SLURM|CUDA|NEMOTRON)_\w+")
"""Variables that a config may read and anyone may see."""
SECRET_KEY = re.compile(
    r"(?:^|_)(?:(?<!bos_)(?<!eos_)(?<!pad_)(?<!unk_)(?<!sep_)(?<!cls_)(?<!mask_)token"
    r"|secret|passw(?:or)?d|passphrase|credentials?|(?:api|access|private|secret)_?key(?:_id)?)$"
    r"|(?:^|_)(?:pwd?|pat)(?:_|$)"
)
"""Config keys, in snake case, whose values are secret: by their last words, or a short word anywhere."""
NO_SECRET = re.compile(
    r"|\*\*\*|.*\$\{.*|<.*>|\[[A-Z]+\]|(?:\w+:|\$)?[A-Z][A-Z0-9]*_[A-Z0-9_]+|null|None|EMPTY", re.DOTALL
)
"""Values under such a key that are not secret: references, a tokenizer's special tokens, names of variables."""
PATHS = ("/", "./", "../", "~")
"""Prefixes of a path."""
_read_by_config: dict[str, str] = {}


def keep_secret(name: str) -> None:
    """Treat a variable read by a config as secret, unless its value is a path or a number."""
    value = os.environ.get(name, "")
    if len(value) >= SHORTEST and not _is_plain(value) and not HARMLESS.fullmatch(name):
        _read_by_config[value] = name


def with_references(value: Any) -> Any:
    """A config ready to be written: `${oc.env:NAME}` again for values read from variables, other secrets redacted.

    Reading the file with OmegaConf, as our own commands do, takes the values from the environment again.
    """

    return redact_values(as_references(value))


def as_references(value: Any) -> Any:
    """Replace values read from the environment by `${oc.env:NAME}` again."""

    def change(text: str) -> str:
        for secret in sorted(_read_by_config, key=len, reverse=True):  # one may contain another
            text = text.replace(secret, f"${{oc.env:{_read_by_config[secret]}}}")
        return text

    return _in_all_texts(value, change)


def _is_plain(value: str) -> bool:
    """Whether a value is a path or a number, which messages and manifests must be able to show."""
    return value.startswith(PATHS) or re.fullmatch(r"[\d.,e+-]+", value) is not None


def _is_file(value: str) -> bool:
    """Whether a value is the path of a secret's file rather than the secret itself."""
    return value.startswith(PATHS) and os.path.exists(os.path.expanduser(value))  # noqa: PTH110, PTH111 - no error for odd texts


def secret_values() -> list[str]:
    """Values to hide, in every spelling, longest first because one may contain another."""
    return _spelled(_telling_values() | set(_read_by_config))


def _telling_values() -> set[str]:
    # of any form: a password may be a number, and an AWS key may begin with a slash
    return {value for name, value in os.environ.items() if _tells(name, value) and not _is_file(value)}


def _tells(name: str, value: str) -> bool:
    return bool(TELLING.search(name) or (TELLING_OF_TEXT.search(name) and not _is_plain(value)))


def _spelled(values: set[str]) -> list[str]:
    known = [value for value in values if len(value) >= SHORTEST]
    return sorted({spelling for value in known for spelling in _spellings(value)}, key=len, reverse=True)


@cache
def _spellings(value: str) -> tuple[str, ...]:
    """The value verbatim, URL-quoted, in JSON, and as Python's repr with either kind of quote."""
    return (
        value,
        quote(value, safe="", errors="surrogateescape"),
        json.dumps(value)[1:-1],
        json.dumps(value, ensure_ascii=False)[1:-1],
        repr(value)[1:-1],
        repr(value + "'\"")[1:-4],
    )


def holds_secret(text: str) -> bool:
    """Whether a text that others will read, such as a script, contains a secret.

    Less strict than `redact`: a value a config reads from a variable may belong there, such as an account's name, and
    so may a URL's query. Shell expansions do not count.
    """
    written = EXPANSION.sub("-", text)
    for value in _spelled(_telling_values()):
        if value in written:
            return True
    return any(pattern.search(written) for pattern, _ in PATTERNS if pattern is not SIGNED[0])


def redact(text: str) -> str:
    """Replace every secret by `***`."""
    return _without(secret_values(), text)


def _without(secrets: list[str], text: str) -> str:
    for value in secrets:
        text = text.replace(value, HIDDEN)
    for pattern, shown in PATTERNS:
        text = pattern.sub(shown, text)
    return text


def redact_values(value: Any) -> Any:
    """Redact all texts in a tree of plain values, as in JSON and YAML."""
    return _in_all_texts(value, partial(_without, secret_values()), _without_secret)


def _in_all_texts(value: Any, change: Callable[[str], str], below: Callable[[Any, str], str] | None = None) -> Any:
    """Map `change` over all texts of a tree.

    Args:
        below: further change to a text, given its key.
    """
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        changed = {_in_all_texts(key, change): _in_all_texts(child, change, below) for key, child in value.items()}
        if below is None:
            return changed
        return {key: below(key, child) if isinstance(child, str) else child for key, child in changed.items()}
    if isinstance(value, (list, tuple)):
        return [_in_all_texts(child, change, below) for child in value]
    return value


def _without_secret(key: Any, text: str) -> str:
    """Hide a text if its key is a secret's: `api_key`, `hf_token`, `dbPassword`."""
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|[^A-Za-z0-9]+", "_", str(key)).lower()
    is_secret = SECRET_KEY.search(words) and not NO_SECRET.fullmatch(text) and not _is_plain(text)
    return HIDDEN if is_secret else text
