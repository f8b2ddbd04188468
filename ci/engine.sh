#!/usr/bin/env bash
# One engine by itself: an environment of its own from the lock, and the tests that need it. No GPU, no network but
# the package registries.
#   ci/engine.sh automodel [pytest options]
set -euo pipefail
cd "$(dirname "$0")/.."
engine=${1:?usage: ci/engine.sh megatron|automodel|evaluator|nemo_rl [pytest options]}
shift

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
export UV_PROJECT_ENVIRONMENT=${ENGINE_ENVIRONMENT:-$scratch/environment} NEMOTRON_HOME=$scratch/home
export OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1
tools=(--with pytest --with pytest-xdist --with hypothesis)

# uv does not look for the Python versions that pyenv holds but has not activated.
python312() {
    local found
    found=$(uv python find 3.12 2>/dev/null) || found=$(pyenv prefix 3.12 2>/dev/null)/bin/python
    [ -x "$found" ] && echo "$found" || echo 3.12 # which uv fetches, where it may
}

case $engine in
automodel)
    members=(--package nemotron-sft --package nemotron-pretrain --extra automodel)
    ;;
megatron)
    members=(--package nemotron-sft --package nemotron-pretrain --extra megatron --python "$(python312)")
    ;;
evaluator) # the stage calls NeMo Evaluator as a program, and its harness has the name of lm-eval's package
    members=(--package nemotron-eval)
    UV_PROJECT_ENVIRONMENT=$scratch/evaluator uv sync --locked --quiet --only-group evaluator
    export NEMOTRON_EVALUATOR=$scratch/evaluator/bin
    ;;
*)
    echo "engine: no engine named '$engine'; there are: megatron, automodel, evaluator, nemo_rl" >&2
    exit 2
    ;;
esac

uv sync --locked --quiet "${members[@]}"
uv run --locked --quiet "${members[@]}" "${tools[@]}" pytest -m "$engine" stages/*/tests/conformance "$@"
