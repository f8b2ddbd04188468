#!/usr/bin/env bash
# Every check that reads code without running it, and that the lock and the members' ranges agree. All checks run, the
# cheapest first; the last lines name those that failed, each with the command that mends it, if there is one.
set -euo pipefail
cd "$(dirname "$0")/.."

failed=()
check() { # check MENDS COMMAND...: MENDS is a command, or empty if a person has to
    local mends=$1
    shift
    "$@" || failed+=("$*${mends:+    mend it: $mends}")
}

# Without an environment that fits the lock, no other check means anything.
uv lock --check || { echo "failed: uv lock --check    mend it: uv lock" >&2; exit 1; }
uv sync --all-packages --locked --quiet

check "" uv pip check --quiet --python "${UV_PROJECT_ENVIRONMENT:-.venv}" # `uv lock` does not look at a member's range on another member; this does
check "uv run ruff format" uv run ruff format --check .
check "uv run ruff check --fix" uv run ruff check .
# Shell scripts, where the program that reads them is at hand. Parts of jobs' scripts are read where they are put together.
! command -v shellcheck >/dev/null || check "" shellcheck .ci/run ci/*.sh findings/*.sh tests/slurm/*.sh
check "" uv run lint-imports
check "uv run python tests/seeds_page.py" uv run python tests/seeds_page.py --check
check "" uv run ty check
check "uv run python ci/pages.py" uv run python ci/pages.py --check # generated tables of READMEs and documents
check "" uv run python ci/site.py
# The guides that the project implements, where their texts are at hand.
[[ -z "${NEMOTRON_GUIDES:-}" ]] || check "" uv run python ci/guides.py "$NEMOTRON_GUIDES"

if ((${#failed[@]})); then
    printf 'failed: %s\n' "${failed[@]}" >&2
    exit 1
fi
