#!/usr/bin/env bash
# Every check that needs a GPU, on a machine with one NVIDIA GPU, in about a quarter of an hour once the environments are there:
# `pytest -m gpu`, then benchmarks/gpu.py. Writes gpu.json, gpu.txt and the tests' own log into a folder.
#   ci/gpu.sh results                    makes the environments with uv (network; the kernels are compiled, which takes long)
#   ci/gpu.sh --here results             uses the python3 of this shell as it is, for everything; it has our wheels
#   ci/gpu.sh --rehearse results         no GPU: the whole way with a few steps on the CPU; the tests are left out
# Instead of making an environment, an interpreter can be named: TRANSFORMERS_PYTHON, AUTOMODEL_PYTHON.
set -euo pipefail
cd "$(dirname "$0")/.."
root=$PWD
usage="usage: ci/gpu.sh [--here | --rehearse] [--minutes N] FOLDER"

mode=uv minutes=12 out=
while [ $# -gt 0 ]; do
    case $1 in
    --here | --rehearse) mode=${1#--} ;;
    --minutes) minutes=${2:?$usage} && shift ;;
    -*) echo "$usage" >&2 && exit 2 ;;
    *) out=$1 ;;
    esac
    shift
done
[ -n "$out" ] || { echo "$usage" >&2; exit 2; }
mkdir -p "$out"
out=$(cd "$out" && pwd)

if [ "$mode" != rehearse ] && ! nvidia-smi --query-gpu=name,memory.total,driver_version --format=csv; then
    echo "gpu: nvidia-smi finds no GPU, so nothing was run; --rehearse goes the whole way without one" >&2
    exit 1
fi

# environment NAME MEMBER EXTRA KERNELS: prints the interpreter of an environment, made if need be.
# Where the kernels do not build, the environment is used without them, and the report says what was not run.
environment() {
    local name=$1 member=$2 extra=$3 kernels=$4 folder=$root/.venv-gpu/$1
    local sync=(env "UV_PROJECT_ENVIRONMENT=$folder" uv sync --locked --inexact --package "$member")
    [ -n "$extra" ] && sync+=(--extra "$extra")
    "${sync[@]}" >&2 || echo "gpu: the environment '$name' cannot be made; see above" >&2
    uv pip install --quiet --python "$folder/bin/python" pytest pytest-xdist setuptools wheel ninja packaging >&2 || true
    if [ "$kernels" = yes ]; then
        "${sync[@]}" --extra kernels --no-build-isolation-package mamba-ssm \
            --no-build-isolation-package causal-conv1d >&2 || echo "gpu: mamba-ssm and causal-conv1d do not build" >&2
    fi
    echo "$folder/bin/python"
}

if [ "$mode" = uv ]; then
    transformers=${TRANSFORMERS_PYTHON:-$(environment transformers nemotron-rl "" yes)}
    automodel=${AUTOMODEL_PYTHON:-$(environment automodel nemotron-sft automodel yes)}
else
    here=$(command -v python3)
    transformers=${TRANSFORMERS_PYTHON:-$here}
    automodel=${AUTOMODEL_PYTHON:-$here}
fi

export PYTHONPATH=$root${PYTHONPATH:+:$PYTHONPATH} PYTHONUNBUFFERED=1
status=0
tests=$out/tests.jsonl
rm -f "$tests"
if [ "$mode" != rehearse ]; then
    "$transformers" -c 'import sys, torch; sys.exit(None if torch.cuda.is_available() else
        f"gpu: torch {torch.__version__} sees no GPU: it needs a build for CUDA and a driver that is new enough")'
    # Kernels are compiled and tuned for each shape, up to two minutes each on one core, so tests run side by side where
    # pytest-xdist is there; a test that runs alone has times as well. Results are written test by test.
    cores=$(nproc)
    side=()
    "$transformers" -c 'import xdist' 2>/dev/null && side=(-n "$((cores < 12 ? cores : 12))")
    GPU_RESULTS=$tests timeout 420 "$transformers" -m pytest -o addopts= --import-mode=importlib -ra "${side[@]}" -m gpu \
        tests/gpu || status=$?
    [ "$status" = 124 ] && echo "gpu: the tests were ended after seven minutes; those that had run are in the report" >&2
fi
arguments=("$out" --minutes "$minutes" --python "$transformers" --automodel-python "$automodel")
[ "$mode" = rehearse ] && arguments+=(--rehearse)
"$transformers" benchmarks/gpu.py "${arguments[@]}" || status=$?
exit "$status"
