"""Pass secrets to a job in a file that only its owner can read, and nowhere else.

It is a shell file: the job's script sources it with tracing off, and removes it when the work is done.
"""

import os
import re
import shlex
import shutil
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from nemotron_cluster.profiles import Profile
from nemotron_shared.system.atomic import sync
from nemotron_shared.system.errors import UserError
from nemotron_shared.system.redaction import TELLING, as_references, holds_secret

FOLDER, FILE = "secrets", "env"


def refuse_written(profile: Profile, origins: Mapping[str, str]) -> None:
    """Refuse profiles that contain secrets, because scripts, records and dry runs show profiles unchanged.

    Args:
        origins: where each key was written: "env.toml:4 [mycluster]".

    Raises:
        UserError: the profile contains a secret.
    """

    def refused(key: str, what: str, remedy: str) -> UserError:
        origin = origins.get(key) or origins.get(re.split(r"[.\[]", key)[0])
        where = f"{origin}: {key}" if origin else key
        return UserError(f"{where} {what}, and what stands there is written into scripts", remedy)

    for name in profile.env_vars:
        if TELLING.search(name):
            remedy = f'take it out of env_vars, set it in your shell, and write: secrets = ["{name}"]'
            raise refused(f"env_vars.{name}", "has the name of a secret", remedy)
    remedy = 'take it out, set it in your shell as a variable, and hand that over by its name: secrets = ["NAME"]'
    for key, text in texts_in(profile.model_dump(exclude_unset=True)):
        if holds_secret(text):
            raise refused(key, "holds a secret", remedy)
        if key.startswith("env_vars.") and as_references(text) != text:
            raise refused(key, "holds what a config reads from a variable", remedy)


def texts_in(value: object, key: str = "") -> Iterator[tuple[str, str]]:
    """All strings in a value, with their keys: `env_vars.NAME`, `mounts[0]`."""
    if isinstance(value, str):
        yield key, value
    elif isinstance(value, Mapping):
        for name, child in value.items():
            yield from texts_in(child, f"{key}.{name}" if key else str(name))
    elif isinstance(value, (list, tuple)):
        for number, child in enumerate(value):
            yield from texts_in(child, f"{key}[{number}]")


def names_of(
    profile: Profile, origins: Mapping[str, str], environment: Mapping[str, str] = os.environ
) -> tuple[str, ...]:
    """Names of the profile's secrets that are set in this environment.

    Args:
        origins: where each key of the profile was written.

    Raises:
        UserError: the profile itself contains a secret.
    """
    refuse_written(profile, origins)
    return tuple(name for name in dict.fromkeys(profile.secrets) if environment.get(name))


def write_secrets(folder: Path, names: Iterable[str], environment: Mapping[str, str] = os.environ) -> Path | None:
    """Write the values of variables for a job. Returns the file, or None without any variables.

    Raises:
        UserError: a value that cannot be written in a shell file.
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
    # Restrict permissions on creation, before any byte is written.
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
