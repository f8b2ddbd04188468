"""Turn errors specific to hub data sets into user errors with a remedy.

with data_set_errors("hf://org/name", "org/name", None):
    ...      # DatasetNotFoundError -> "hf://org/name: no such data set on the hub, or a private one"
"""

from collections.abc import Generator
from contextlib import contextmanager

from nemotron_data.sources.remote import reported
from nemotron_shared.errors import UserError, how_to_add
from nemotron_shared.hub_errors import HubPlace, hub_errors
from nemotron_shared.redaction import redact


@contextmanager
def hub_messages_off() -> Generator[None]:
    """Silence the library's progress bars and logs while it resolves files; we print one line instead."""
    import datasets

    level, bars = datasets.logging.get_verbosity(), datasets.are_progress_bars_disabled()
    datasets.logging.set_verbosity_error()
    datasets.disable_progress_bars()
    try:
        yield
    finally:
        datasets.logging.set_verbosity(level)
        if not bars:
            datasets.enable_progress_bars()


@contextmanager
def data_set_errors(text: str, name: str, revision: str | None) -> Generator[None]:
    """Turn exceptions of the hub's libraries into errors with a remedy; others are reported like any remote error.

    Args:
        text: the address as the user wrote it, for messages.
        name: the repository, organisation/name.
    """
    try:
        from datasets.exceptions import DatasetNotFoundError
        from huggingface_hub import errors
    except ImportError as error:
        what = f"{text}: hf:// paths need the packages datasets and huggingface_hub"
        raise UserError(what, how_to_add("datasets", "huggingface-hub")) from error
    with reported(text), hub_errors(text, HubPlace(name, revision, "data set")):
        try:
            yield
        except DatasetNotFoundError as error:
            remedy = "check the name; for a private one set HF_TOKEN to a token that may read it"
            raise UserError(f"{text}: no such data set on the hub, or a private one", remedy) from error
        except errors.LocalEntryNotFoundError:
            raise  # also a FileNotFoundError, but not about the card
        except (FileNotFoundError, ValueError) as error:
            remedy = "name the files by hand, as in hf://org/name/data/*.jsonl; offline, the cache may be incomplete"
            raise UserError(f"{text}: what its card names cannot be found: {redact(str(error))}", remedy) from error
        except RuntimeError as error:
            if "script" not in str(error):
                raise
            remedy = f"scripts are not run; the hub may have a copy in Parquet: hf://{name}@refs/convert/parquet"
            raise UserError(f"{text}: a data set that is a script", remedy) from error
