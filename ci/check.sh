#!/usr/bin/env bash
# Every check that reads code without running it, and that the lock and the members' ranges agree.
set -euo pipefail
cd "$(dirname "$0")/.."

uv lock --check
uv sync --all-packages --locked --quiet
uv pip check --quiet --python "${UV_PROJECT_ENVIRONMENT:-.venv}" # `uv lock` does not look at a member's range on another member; this does
uv run ruff format --check .
uv run ruff check .
uv run ty check
uv run lint-imports
uv run python ci/pages.py --check # generated tables of READMEs and documents
uv run python tests/seeds_page.py --check
uv run python ci/site.py
# Shell scripts, where the program that reads them is at hand. Parts of jobs' scripts are read where they are put together.
! command -v shellcheck >/dev/null || shellcheck .ci/run ci/*.sh findings/*.sh tests/slurm/*.sh
# The guides that the project implements, where their texts are at hand.
[[ -z "${NEMOTRON_GUIDES:-}" ]] || uv run python ci/guides.py "$NEMOTRON_GUIDES"
