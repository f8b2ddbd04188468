#!/usr/bin/env bash
# The guess: `safetensors.numpy.save_file` writes the array that it is given. If it cannot write a view that does not
# lie in memory row by row, such as a transposed matrix, it raises, as `safetensors.torch.save_file` does.
#
# What happens: it writes as many bytes as the view has, in the order in which they lie in memory, with the shape of
# the view. What is loaded has the right shape and type, and the wrong numbers.
#
# Why it matters: converting a checkpoint transposes matrices (`weight.T`) and cuts pieces out of fused ones
# (`weight[:, ::2]`). The converted file loads everywhere without an error and holds another model. Call
# `numpy.ascontiguousarray` on everything first.
#
# Versions: safetensors 0.8.0, numpy 2.4.6. Date: 2026-11-29.
#
# Seen:
#   safetensors 0.8.0 numpy 2.4.6
#     weight: given [[0, 1, 2], [3, 4, 5]], loaded [[0, 1, 2], [3, 4, 5]]
#     weight.T: given [[0, 3], [1, 4], [2, 5]], loaded [[0, 1], [2, 3], [4, 5]]
#     weight[:, ::2]: given [[0, 2], [3, 5]], loaded [[0, 1], [2, 3]]
#     ascontiguousarray(weight.T): given [[0, 3], [1, 4], [2, 5]], loaded [[0, 3], [1, 4], [2, 5]]
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
uv venv --quiet environment
export VIRTUAL_ENV="$folder/environment"
uv pip install --quiet --exclude-newer 2026-11-28 safetensors==0.8.0 numpy==2.4.6

environment/bin/python - <<'PYTHON'
import sys
from importlib.metadata import version

import numpy
from safetensors.numpy import load_file, save_file

print("safetensors", version("safetensors"), "numpy", numpy.__version__)
weight = numpy.arange(6, dtype=numpy.float32).reshape(2, 3)
given = {
    "weight": weight,
    "weight.T": weight.T,
    "weight[:, ::2]": weight[:, ::2],
    "ascontiguousarray(weight.T)": numpy.ascontiguousarray(weight.T),
}
save_file(given, "weights.safetensors")
loaded = load_file("weights.safetensors")
equal = {name: numpy.array_equal(loaded[name], array) for name, array in given.items()}
for name, array in given.items():
    print(f"  {name}: given {array.astype(int).tolist()}, loaded {loaded[name].astype(int).tolist()}")

if list(equal.values()) != [True, False, False, True]:
    sys.exit(f"changed: equal after saving and loading: {equal}")
PYTHON
