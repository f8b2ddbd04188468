"""The parsers that are tried, by the room that they stand in."""

from functools import cache
from importlib import import_module

from nemotron_prove.input.target import Target
from nemotron_shared.errors import UserError, did_you_mean

ROOMS: dict[str, tuple[str, ...]] = {
    "spoken": ("reference", "address", "gpus", "slice"),
    "configs": ("yaml", "architecture", "config", "override", "expectations"),
    "machines": ("env_toml", "machine"),
    "store": ("manifest", "intact", "notes"),
    "tokens": ("bin_idx", "blend", "packed"),
    "rows": ("rl_rows", "eval_tasks"),
    "results": ("results",),
    "chats": ("rows", "blend_file", "chat", "template"),
    "models": ("model_config", "weights", "tokenizer"),
    "runs": ("metrics", "mark", "segments"),
    "logs": ("diagnose", "slurm"),
    "requests": ("chat_request", "text_request"),
    "answers": ("answer",),
}
"""The modules of this package and their targets: a process that tries one target imports no other's libraries."""
NAMES = tuple(name for names in ROOMS.values() for name in names)


@cache
def target_named(name: str) -> Target:
    """One of them.

    Raises:
        UserError: there is none of that name.
    """
    room = next((room for room, names in ROOMS.items() if name in names), None)
    if room is None:
        raise UserError(f"no target '{name}'", did_you_mean(name, NAMES, f"there are: {', '.join(NAMES)}"))
    return next(one for one in import_module(f"{__name__}.{room}").TARGETS if one.name == name)
