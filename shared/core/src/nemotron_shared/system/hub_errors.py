"""Turn errors of the Hugging Face hub into messages with a remedy.

with hub_errors("hf://org/name", HubPlace("org/name", None, "model")):
    ...      # GatedRepoError -> "hf://org/name: a gated model", "ask for access on its page ..."
"""

import logging
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

from nemotron_shared.system.errors import UserError, how_to_add
from nemotron_shared.system.redaction import redact

NETWORK = ("httpx", "requests", "urllib3", "httpcore")
"""Packages whose errors mean the hub was not reached; which one is in use depends on the library's version."""


@dataclass(frozen=True)
class HubPlace:
    """A repository on the hub, for messages."""

    repository: str
    revision: str | None
    kind: Literal["model", "data set"]


def _without_secrets(record: logging.LogRecord) -> bool:
    """Log filter: the library logs signed URLs when requests fail."""
    record.msg, record.args = redact(record.getMessage()), ()
    return True


@contextmanager
def hub_errors(text: str, place: HubPlace) -> Generator[None]:
    """Turn errors of the hub library into errors with a remedy.

    Args:
        text: the address as the user wrote it.
    """
    try:
        from huggingface_hub import constants, errors
    except ImportError as error:
        what = f"{text}: hf:// addresses need the package huggingface_hub"
        raise UserError(what, how_to_add("huggingface-hub")) from error
    for handler in logging.getLogger("huggingface_hub").handlers:
        handler.addFilter(_without_secrets)  # adding the same function twice has no effect
    option = "--repo-type dataset " if place.kind == "data set" else ""
    try:
        yield
    except errors.GatedRepoError as error:
        page = f"{constants.ENDPOINT}/{'datasets/' if option else ''}{place.repository}"
        remedy = f"ask for access on its page, then set HF_TOKEN to a token of that account ({redact(page)})"
        raise UserError(f"{text}: a gated {place.kind}", remedy) from error
    except errors.RevisionNotFoundError as error:
        raise UserError(f"{text}: no revision '{place.revision}'", "name a branch, tag or commit") from error
    except errors.RepositoryNotFoundError as error:
        remedy = "check the name; for a private one set HF_TOKEN to a token that may read it"
        raise UserError(f"{text}: no such {place.kind} on the hub, or a private one", remedy) from error
    except errors.LocalEntryNotFoundError as error:
        if not constants.HF_HUB_OFFLINE and place.kind == "model":
            raise _unreachable(text, constants.ENDPOINT, error) from error
        remedy = f"download it once, 'hf download {option}{place.repository}', or leave the offline mode"
        raise UserError(f"{text}: not in the local cache, and offline mode is set", remedy) from error
    except errors.HFValidationError as error:
        raise UserError(f"{text}: not an address of the hub", "write hf://organisation/name") from error
    except errors.HfHubHTTPError as error:
        raise _unreachable(text, constants.ENDPOINT, error) from error
    except Exception as error:
        if not type(error).__module__.startswith(NETWORK):
            raise
        raise _unreachable(text, constants.ENDPOINT, error) from error


def _unreachable(text: str, endpoint: str, error: Exception) -> UserError:
    first = next(iter(str(error).strip().splitlines()), "")
    return UserError(
        f"{text}: the hub at {redact(endpoint)} does not answer as it should: {type(error).__name__}: {redact(first)}",
        "run the same command again to resume the download; check the connection, HF_ENDPOINT and HTTPS_PROXY",
    )
