"""Which members a change touches, as a JSON list for a CI matrix.

    python ci/changed.py origin/main        ["rl"]
    python ci/changed.py --all              ["shared", "data", "engines", "app", "pretrain", "sft", "rl", "eval"]

Shared code, the lock and the workspace file touch everyone.
"""

import json
import subprocess
import sys

MEMBERS = ["shared", "data", "engines", "app", "pretrain", "sft", "rl", "eval"]
TOUCHES_ALL = ("shared/", "uv.lock", "pyproject.toml", "ci/", ".github/", ".ci/")


def members_of(paths: list[str]) -> list[str]:
    """Members whose tests a change of `paths` calls for, in a fixed order."""
    if any(path.startswith(TOUCHES_ALL) for path in paths):
        return MEMBERS
    return [member for member in MEMBERS if any(path.startswith(f"stages/{member}/") for path in paths)]


def changed_paths(base: str) -> list[str]:
    """Paths that differ between `base` and the working tree's HEAD."""
    command = ["git", "diff", "--name-only", f"{base}...HEAD"]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python ci/changed.py BASE | --all")
    print(json.dumps(MEMBERS if sys.argv[1] == "--all" else members_of(changed_paths(sys.argv[1]))))
