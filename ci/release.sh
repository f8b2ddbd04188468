#!/usr/bin/env bash
# Release one member: version and changelog must agree; builds it and names the tag. Pushes nothing.
#   ci/release.sh sft
set -euo pipefail
cd "$(dirname "$0")/.."
member=${1:?usage: ci/release.sh shared|data|cluster|engines|app|serving|pretrain|sft|rl|eval}

folder=stages/$member
case $member in
shared) folder=shared/core ;;
data | cluster | engines | app | serving) folder=shared/$member ;;
esac
version=$(sed -n 's/^version = "\(.*\)"/\1/p' "$folder/pyproject.toml" | head -1)
tag=$member-v$version

fail() { echo "release: $1" >&2; exit 1; }
[ -n "$version" ] || fail "$folder/pyproject.toml has no version"
[ -z "$(git status --porcelain)" ] || fail "the working tree is not clean; commit first"
git rev-parse -q --verify "refs/tags/$tag" >/dev/null && fail "the tag $tag exists; raise the version"
section=$(awk -v heading="## $version" '$0 ~ "^## " {inside = index($0, heading) == 1; next} inside && NF' "$folder/CHANGELOG.md")
unreleased=$(awk '/^## / {inside = /^## Unreleased/; next} inside && NF' "$folder/CHANGELOG.md")
[ -z "$unreleased" ] || fail "$folder/CHANGELOG.md has notes under 'Unreleased': move them to '## $version'"
[ -n "$section" ] || fail "$folder/CHANGELOG.md has nothing under '## $version'"

# `uv lock` does not look at a member's range on another member, and a release that no other accepts is of no use
uv sync --all-packages --locked --quiet || fail "uv.lock is not of these versions: run uv lock, and commit"
uv pip check --python "${UV_PROJECT_ENVIRONMENT:-.venv}" || fail "$tag is outside the ranges above: raise them in the same commit, or raise the last number only"

rm -rf "$folder/build" "dist/$member"
uv build --package "nemotron-$member" --out-dir "dist/$member"
git tag -a "$tag" -m "nemotron-$member $version" -m "$section"
echo "built dist/$member and made the tag $tag; publish with: uv publish dist/$member/*; git push origin $tag"
