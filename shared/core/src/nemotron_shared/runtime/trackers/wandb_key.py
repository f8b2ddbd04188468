"""Check that W&B would accept a run, without its package and without a network."""

import netrc
import os
from collections.abc import Mapping
from pathlib import Path

KEYS = ("WANDB_API_KEY", "WANDB_IDENTITY_TOKEN_FILE")
WITHOUT_KEY = ("offline", "disabled", "dryrun")


def can_log(environment: Mapping[str, str] = os.environ, *, files: bool = True) -> bool:
    """Whether there is a key, or none is required.

    Args:
        environment: of the process that will log.
        files: whether that process has this account's files.
    """
    if any(environment.get(name) for name in KEYS) or environment.get("WANDB_MODE", "").lower() in WITHOUT_KEY:
        return True
    return files and (_has_own_settings(environment) or _is_logged_in(environment))


def _has_own_settings(environment: Mapping[str, str]) -> bool:
    """Whether W&B's settings file may waive the key: `wandb offline` or another server, left to W&B."""
    folder = environment.get("WANDB_CONFIG_DIR") or "~/.config/wandb"
    files = (Path(folder).expanduser() / "settings", Path(environment.get("WANDB_DIR") or ".") / "wandb" / "settings")
    return any("mode" in text or "base_url" in text for text in map(_text, files))


def _is_logged_in(environment: Mapping[str, str]) -> bool:
    """Whether `wandb login` left an entry in netrc."""
    named = environment.get("NETRC")
    places = [Path(place).expanduser() for place in ([named] if named else ["~/.netrc", "~/_netrc"])]
    file = next((place for place in places if place.exists()), None)
    try:
        hosts = netrc.netrc(file).hosts if file else {}
    except (netrc.NetrcParseError, OSError, UnicodeDecodeError):
        return False
    server = environment.get("WANDB_BASE_URL", "").partition("//")[2].strip("/")
    return any("wandb" in host or host in ("default", server) for host in hosts)


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
