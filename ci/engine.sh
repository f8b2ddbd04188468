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

# uv does not look for the Python versions that pyenv holds but has not activated.
python312() {
    local found
    found=$(uv python find 3.12 2>/dev/null) || found=$(pyenv prefix 3.12 2>/dev/null)/bin/python
    [ -x "$found" ] && echo "$found" || echo 3.12 # which uv fetches, where it may
}

# checkout NAME COMMIT: NeMo-RL's sources at a commit, in $NEMO_RL_CHECKOUTS/NAME
checkout() {
    local folder=$NEMO_RL_CHECKOUTS/$1
    [ -d "$folder" ] && return
    git init --quiet "$folder"
    git -C "$folder" fetch --quiet --depth 1 https://github.com/NVIDIA-NeMo/RL.git "$2"
    git -C "$folder" checkout --quiet FETCH_HEAD
}

unlocked=()
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
nemo_rl) # NeMo-RL is on no registry: its sources come from its repository, or from a folder that is there already
    members=(--only-group nemo-rl --python "$(python312)")
    export NEMO_RL_CHECKOUTS=${NEMO_RL_CHECKOUTS:-$scratch/checkouts} NO_VCS_VERSION=1
    checkout v0.7.0 81aa43dda4765b0429cf31dab44441e4e4383911
    checkout nano-v3 823fcc90428eb18e00cf45b3d73069d3ea6dc988
    export PYTHONPATH=$NEMO_RL_CHECKOUTS/v0.7.0:$PWD
    unlocked=("transformers==5.8.1") # NeMo-RL refuses 5.12, where the range of our own packages begins
    ;;
*)
    echo "engine: no engine named '$engine'; there are: megatron, automodel, evaluator, nemo_rl" >&2
    exit 2
    ;;
esac

uv sync --locked --quiet "${members[@]}"
uv pip install --quiet --python "$UV_PROJECT_ENVIRONMENT" pytest pytest-xdist hypothesis peft "${unlocked[@]}"
"$UV_PROJECT_ENVIRONMENT/bin/python" -m pytest -m "$engine" stages/*/tests/conformance "$@"
