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
