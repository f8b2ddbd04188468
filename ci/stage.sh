#!/usr/bin/env bash
# One member by itself: its own environment, its tests, its tiny run, and its wheel run outside the repository.
#   ci/stage.sh sft
set -euo pipefail
cd "$(dirname "$0")/.."
stage=${1:?usage: ci/stage.sh shared|data|cluster|engines|app|serving|pretrain|sft|rl|eval}

command -v uv >/dev/null || python3 -m pip install --quiet uv
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
export UV_PROJECT_ENVIRONMENT=$scratch/environment NEMOTRON_HOME=$scratch/home
# In a copy: builds leave folders in the sources, and such a leftover can hide a file missing from the package list.
mkdir "$scratch/source"
git ls-files -z --cached --others --exclude-standard | grep -zvxFf <(git ls-files --deleted) |
    xargs -0 cp --parents --target-directory "$scratch/source"
cd "$scratch/source"

extra=()
tests=stages/$stage/tests
case $stage in
shared) tests=shared/core/tests ;;
data) tests=shared/data/tests extra=(--extra hub --extra ray) ;;
cluster | engines | app | serving) tests=shared/$stage/tests ;;
esac
uv sync --package "nemotron-$stage" "${extra[@]}" --locked --quiet
uv run --package "nemotron-$stage" "${extra[@]}" --locked --with pytest --with pytest-xdist --with pytest-timeout \
    --with hypothesis pytest -q "$tests"
[ -d "stages/$stage" ] || exit 0

# Small enough for every commit; the full tiny pipeline has a test of its own.
short=(-c tiny)
case $stage in
pretrain | sft) short+=(train.train_iters=4 train.eval_interval=4) ;;
rl) short+=(train.train_iters=2 train.eval_interval=2 grpo.max_new_tokens=8 data_prep.synthetic_problems=100) ;;
eval) short+=(evaluation.limit=8) ;;
esac
"$UV_PROJECT_ENVIRONMENT/bin/torchrun" "stages/$stage/train.py" "${short[@]}"

for member in shared data cluster engines app serving "$stage"; do
    uv build --quiet --wheel --package "nemotron-$member" --out-dir "$scratch/wheels"
done
uv venv --quiet "$scratch/outside"
uv pip install --quiet --no-sources --python "$scratch/outside/bin/python" "$scratch"/wheels/*.whl \
    --constraint <(uv export --quiet --package "nemotron-$stage" --no-emit-workspace --no-hashes)
mkdir "$scratch/empty" && cd "$scratch/empty"
NEMOTRON_HOME=$scratch/home2 "$scratch/outside/bin/python" -m "stages.$stage.train" "${short[@]}"
echo "$stage: tests, tiny run and wheel are fine"
