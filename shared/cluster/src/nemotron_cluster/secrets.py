"""What is secret goes to a job in a file that only its owner can read, and nowhere else.

The file is a shell's: the job's script reads it with its echo off and removes it when the work is done.
"""

import os
import shlex
import shutil
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from nemotron_cluster.profiles.schema import Profile
from nemotron_shared.atomic import sync
from nemotron_shared.errors import UserError
from nemotron_shared.redaction import TELLING, as_references, holds_secret

FOLDER, FILE = "secrets", "env"


def refuse_written(profile: Profile) -> None:
    """Scripts, records and what a dry run shows hold a profile as it is.

    Raises:
        UserError: a secret stands in it.
    """
    remedy = 'take it out, set it in your shell as a variable, and hand that over by its name: secrets = ["NAME"]'
    for name in profile.env_vars:
        if TELLING.search(name):
            remedy = f'take it out of env_vars, set it in your shell, and write: secrets = ["{name}"]'
            raise UserError(f"env_vars holds {name}, and what stands there is written into scripts", remedy)
    for key, value in profile.model_dump(exclude_unset=True).items():
        if any(holds_secret(text) for text in _texts(value)):
            raise UserError(f"{key} holds a secret, and what stands there is written into scripts", remedy)
    if as_references(profile.env_vars) != profile.env_vars:
        what = "env_vars holds what a config reads from a variable, and what stands there is written into scripts"
        raise UserError(what, remedy)


def _texts(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        yield from (text for child in value.values() for text in _texts(child))
    elif isinstance(value, (list, tuple)):
        yield from (text for child in value for text in _texts(child))


def names_of(profile: Profile, environment: Mapping[str, str] = os.environ) -> tuple[str, ...]:
    """The profile's secrets that are set here.

    Raises:
        UserError: a secret stands in the profile itself.
    """
    refuse_written(profile)
    return tuple(name for name in dict.fromkeys(profile.secrets) if environment.get(name))


def write_secrets(folder: Path, names: Iterable[str], environment: Mapping[str, str] = os.environ) -> Path | None:
    """Write the values of variables for a job; None where there are none.

    Raises:
        UserError: a value that no line of a shell can hold.
    """
    values = {name: environment[name] for name in names}
    if not values:
        return None
    for name, value in values.items():
        if "\0" in value:
            raise UserError(f"the value of {name} holds a NUL byte", "set it again, without")
    place = folder / FOLDER
    place.mkdir(mode=0o700, parents=True, exist_ok=True)
    place.chmod(0o700)
    path = place / FILE
    # Made for its owner alone before the first byte is in it.
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        os.fchmod(file.fileno(), 0o600)
        file.writelines(f"export {name}={shlex.quote(value)}\n" for name, value in values.items())
        file.flush()
        os.fsync(file.fileno())
    sync(place)
    return path


def remove(folder: Path) -> None:
    """Remove the secrets of a job's folder."""
    shutil.rmtree(folder / FOLDER, ignore_errors=True)
