"""Explain Hydra's errors in the user's terms."""

import re
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from hydra import compose as hydra_compose
from hydra.errors import ConfigCompositionException, HydraException, MissingConfigException, OverrideParseException
from omegaconf.errors import OmegaConfBaseException

from nemotron_shared.config.files import parsed, read_text
from nemotron_shared.config.keys import leaf_keys, of_the_same_name
from nemotron_shared.config.overrides import COMMAND_LINE, is_group, override_key, who_says
from nemotron_shared.config.sources import hydra_over
from nemotron_shared.config.translation import config_names
from nemotron_shared.errors import UserError, did_you_mean
from nemotron_shared.stages import STAGES

MOST_SAID = 300
ALL_KEYS = "see --dry-run for all keys"
HOW_TO_WRITE = "docs/configuration.md shows how files and settings are written"
BROKEN = (
    HydraException,
    OmegaConfBaseException,
    ValueError,
    OSError,
    TypeError,
    LookupError,
    AttributeError,
    AssertionError,
)
"""Errors Hydra raises at engine=null, a file that holds a number, and names longer than a file system allows."""


def not_composed(
    path: Path, folders: Sequence[Path], arguments: Sequence[str], error: ConfigCompositionException
) -> UserError:
    """Explain a composition error in the user's terms; the first of `arguments` is the search path."""
    if isinstance(error, MissingConfigException) and "Could not load" in str(error):
        return _not_there(path, folders, error)
    if group := re.search(r"Could not find '([\w/]+)/([\w.-]+)'", str(error)):
        known = sorted({name for folder in folders for name in config_names(folder / group[1])})
        remedy = did_you_mean(group[2], known, f"there are: {', '.join(known)}")
        return UserError(f"{group[1]}={group[2]}: there is no such {group[1]}", remedy)
    match = re.search(r"Could not (?:override|delete|append to config)[^']*'?([\w.@/-]+)", str(error))
    key = match[1].rstrip(".") if match else None
    search_path, *overrides = arguments
    if key is None or key not in map(override_key, overrides):
        return UserError(f"{path.name}: {first_line(error)}", HOW_TO_WRITE)
    known: list[str] = []
    # what failed to compose with the overrides may fail without them, too
    with hydra_over(path.parent, folders[1:]), suppress(*BROKEN):
        # keep the chosen engine: its keys differ from the default engine's
        chosen = [text for text in overrides if is_group(text, folders)]
        known = list(leaf_keys(hydra_compose(path.stem, overrides=[search_path, *chosen])))
    if any(name == key or name.startswith(f"{key}.") for name in known):
        return UserError(f"{COMMAND_LINE}: '{key}' cannot be set like this", f"write ++{key}=...")
    alike = of_the_same_name(key, known)
    remedy = did_you_mean(key, alike, f"did you mean '{alike[0]}'?") if alike else did_you_mean(key, known, ALL_KEYS)
    return UserError(f"{COMMAND_LINE}: unknown key '{key[:MOST_SAID]}'", remedy)


def _not_there(path: Path, folders: Sequence[Path], error: MissingConfigException) -> UserError:
    """The error for an entry of `defaults` without a file, with what to write instead if we can tell."""
    name = error.missing_cfg_file or ""
    asking = re.match(r"In '([^']+)'", str(error))
    asked_by = asking[1] if asking else path.stem
    above, _, last = name.rpartition("/")
    known = {one for folder in folders for one in config_names(folder)} - {path.stem}
    beside = asked_by.rpartition("/")[0]
    what = f"{asked_by}.yaml: its 'defaults' name '{name}'"
    if _is_absolute(folders, asked_by, name):
        what = f"{asked_by}.yaml: its 'defaults' name '/{name}': a path from the root cannot stand there"
        return UserError(what, "copy the file into the config's folder, and write its path from there")
    if beside and name.startswith(f"{beside}/") and (wanted := name.removeprefix(f"{beside}/")) in known:
        return UserError(f"{what}: a name is looked for in the folder of its own file", f"write '/{wanted}'")
    if above in STAGES and last in known:
        return UserError(f"{what}: a config builds on those of its own stage only", f"write '{last}'")
    remedy = did_you_mean(name, known, f"there are: {', '.join(sorted(known))}")
    return UserError(f"{what}: there is no such config", remedy)


def _is_absolute(folders: Sequence[Path], asked_by: str, name: str) -> bool:
    """Whether an entry is an absolute path, whose leading slash Hydra takes for its search path."""
    file = next((file for folder in folders if (file := folder / f"{asked_by}.yaml").is_file()), None)
    content = parsed(file, read_text(file)) if file else None
    defaults = content.get("defaults") if isinstance(content, dict) else None
    return "/" in name and isinstance(defaults, list) and f"/{name}" in defaults


def unreadable(error: OverrideParseException, overrides: Sequence[str]) -> UserError:
    """The error for an override that Hydra's grammar cannot parse."""
    text = next((one for one in overrides if one == error.override), error.override)
    remedy = "write key=value, and quotes around a value with special characters: 'key=\"a, b\"'"
    why = first_line(error)
    why = "it has a character that needs quotes" if why.startswith("LexerNoViableAltException") else why
    return UserError(f"{who_says(text, None)}: '{text}' cannot be read: {why}", remedy)


def endless(path: Path, config_dir: Path, error: Exception) -> UserError:
    """The error for `defaults` that never end, or that are nested too deeply for Python.

    Args:
        config_dir: the stage's configs, which a file of the same name in another folder hides.
    """
    if files := _circle([path], set()):
        where = f"{path.name}: its 'defaults' lead in a circle ({' -> '.join(file.name for file in files)})"
        remedy = "take one of these files out of the other's 'defaults'"
        if hides := next((file for file in files if _hides(file, config_dir)), None):
            remedy = f"'{hides.stem}' is this folder's file, not the stage's: rename it, such as to my_{hides.name}"
        return UserError(where, remedy)
    if isinstance(error, UserError):
        return UserError(f"{path.name}: {error.message}", error.remedy)
    what = f"{path.name}, with what the command line sets, is nested too deeply"
    return UserError(what, "write fewer brackets within brackets, and shorter chains of 'defaults'")


def _hides(file: Path, config_dir: Path) -> bool:
    return file.parent != config_dir.resolve() and (config_dir / file.name).is_file()


def _circle(chain: list[Path], seen: set[Path]) -> list[Path]:
    """Files in one folder whose `defaults` form a cycle."""
    seen.add(chain[-1])
    content = parsed(chain[-1], read_text(chain[-1]))
    defaults = content.get("defaults") if isinstance(content, dict) else None
    for entry in defaults if isinstance(defaults, list) else []:
        file = chain[-1].parent / f"{str(entry).removesuffix('.yaml')}.yaml"
        if file in chain:
            return [*chain[chain.index(file) :], file]
        is_beside = file.parent == chain[0].parent and file.is_file()
        if is_beside and file not in seen and (found := _circle([*chain, file], seen)):
            return found
    return []


def first_line(error: BaseException) -> str:
    """First line of an error's message; Hydra's may be empty, with the reason in the cause."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if not lines and (below := error.__cause__ or error.__context__):
        return first_line(below)
    return lines[0][:MOST_SAID] if lines else type(error).__name__
