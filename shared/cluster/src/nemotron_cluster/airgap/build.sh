#!/usr/bin/env bash
# Makes an environment from the folder in which this lies, on a machine that has Python and nothing of this project:
#
#     bash FOLDER/build.sh ENVIRONMENT [options of `nemotron airgap build`]
#
# PYTHON names the interpreter where `python3.11`, or whatever the folder is for, is not on PATH.
set -euo pipefail
folder=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
environment=${1:?say which environment to make: bash build.sh ENVIRONMENT}
shift
python=${PYTHON:-python$(sed -n 's/^ *"python": "\(.*\)",*$/\1/p' "$folder/manifest.json")}
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
wheels=("$folder"/wheels/uv-*.whl)
"$python" -m zipfile -e "${wheels[-1]}" "$scratch"
uv=("$scratch"/uv-*.data/scripts/uv)
chmod +x "${uv[0]}"
if [[ ! -x $environment/bin/python ]]; then
    "${uv[0]}" venv --quiet --offline --python "$python" "$environment"
fi
"${uv[0]}" pip install --quiet --offline --no-index --find-links "$folder/wheels" --compile-bytecode \
    --python "$environment/bin/python" nemotron-app
"$environment/bin/nemotron" airgap build "$folder" --target "$environment" "$@"
