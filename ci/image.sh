#!/usr/bin/env bash
# An image of one stage, with the versions of uv.lock, in which `torchrun stages/sft/train.py -c tiny` runs:
#   ci/image.sh sft                     makes the image nemotron-sft
#   BASE=my/base ci/image.sh sft        on another base than python:3.11-slim; it has the Python that runs this script
# The packages are kept in FETCHED, by default in the user's cache, so that the next build fetches only what is new.
set -euo pipefail
cd "$(dirname "$0")/.."
stage=${1:?usage: ci/image.sh pretrain|sft|rl|eval}
[ -d "stages/$stage" ] || { echo "image: no stage named '$stage'; choose pretrain, sft, rl or eval" >&2; exit 2; }
fetched=${FETCHED:-${XDG_CACHE_HOME:-$HOME/.cache}/nemotron/image-$stage}

builder=
for builder in ${BUILDER:-docker podman buildah}; do
    command -v "$builder" >/dev/null && "$builder" info >/dev/null 2>&1 && break
    builder=
done
[ -n "$builder" ] || { echo "image: install docker, podman or buildah, and start its service if it has one" >&2; exit 2; }

command -v uv >/dev/null || python3 -m pip install --quiet uv
nemotron=(uv run --locked --quiet --package nemotron-app nemotron)
"${nemotron[@]}" airgap fetch "$fetched" --package "nemotron-$stage"
"$builder" build --file shared/cluster/src/nemotron_cluster/containers/Dockerfile --tag "nemotron-$stage" \
    --build-arg STAGE="$stage" ${BASE:+--build-arg BASE="$BASE"} "$fetched"
echo "made the image nemotron-$stage; try it: ${builder/buildah/podman} run --rm nemotron-$stage torchrun stages/$stage/train.py -c tiny"
