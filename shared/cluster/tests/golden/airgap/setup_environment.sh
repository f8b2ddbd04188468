#!/bin/bash -l
# shellcheck disable=SC2016

repository=/lustre/nemotron
folder=airgap
environment=automodel_env
fetch=(--package nemotron-sft --cuda 13)
export NCCL_DEBUG=WARN

module load gcc/12.2.0 python/3.11.7
export CUDA_HOME="/opt/cuda/13.0"

# On the login node, from the folder of the project: fetches everything, and makes the environment without the packages
# that only a node with CUDA can compile. Options are those of `nemotron airgap fetch`: --model hf://ORG/NAME
set -euo pipefail
mkdir -p logs/slurm
uv run --project "$repository" nemotron airgap fetch "$folder" "${fetch[@]}" "$@"
code=0
uv run --project "$repository" nemotron airgap build "$folder" --target "$environment" || code=$?
# 1 means: something is left to be built, as above; anything else is an error.
if ((code > 1)); then
    exit "$code"
fi
echo "next, for the Mamba packages: sbatch $(dirname "$0")/build_mamba_deps.slurm"
