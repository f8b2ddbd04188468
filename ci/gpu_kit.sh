#!/usr/bin/env bash
# What a GPU machine without a network lacks to run benchmarks/gpu.py: one archive of about 40 MB, and what unpacks it.
#   ci/gpu_kit.sh FOLDER [PYTHON]
# The machine has a Python 3.12 with torch 2.11 for CUDA 13, Triton, transformers, accelerate and what these need. PYTHON
# has the same torch (default: an environment that is made); causal-conv1d is compiled against it for compute capability
# 9.0, which needs nvcc 13. There, `source FOLDER/activate.sh` unpacks it below /tmp and sets PYTHONPATH. Takes 5 minutes
# on two cores, most of them for causal-conv1d.
set -euo pipefail
cd -P "$(dirname "$0")/.."
carried=$(mkdir -p "${1:?usage: ci/gpu_kit.sh FOLDER [PYTHON]}" && cd "$1" && pwd)
python=${2:-}
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
kit=$scratch/wheels

if [ -z "$python" ]; then
    uv venv --quiet --python 3.12 "$scratch/env"
    python=$scratch/env/bin/python
    uv pip install --quiet --python "$python" torch==2.11.0 pip setuptools wheel ninja packaging einops
fi
uv pip install --quiet --python "$python" 'nvidia-cuda-cccl>=13.0,<13.1' # headers that torch's packages leave out

# Our packages, and those that the machine lacks in the versions of the lock. automodel brings the most.
uv build --quiet --all-packages --wheel -o "$kit/common"
rm -f "$kit"/common/.gitignore
uv export --quiet --frozen --no-hashes --no-emit-workspace --all-packages --extra automodel --extra kernels > "$scratch/locked.txt"
versions() { grep -E "^($(tr ' ' '|' <<< "$*"))==" "$scratch/locked.txt" | sed 's/ *;.*//'; }
lacking=(annotated-types antlr4-python3-runtime datasets dill gigatoken hydra-core
    latex2sympy2-extended math-verify megatron-fsdp multiprocess nemo-automodel omegaconf orjson peft pydantic
    pydantic-core torchao torchdata trl typing-inspection humanize)
platforms=()
for glibc in 39 34 31 28 27 26 24 17; do platforms+=(--platform "manylinux_2_${glibc}_x86_64"); done
download() { # FOLDER REQUIREMENT..: wheels; what has none is built
    local into=$1
    shift
    "$python" -m pip download --quiet --no-deps --only-binary=:all: --python-version 3.12 --implementation cp \
        "${platforms[@]}" --platform manylinux2014_x86_64 --platform manylinux1_x86_64 -d "$into" "$@"
}
for requirement in $(versions "${lacking[@]}"); do
    download "$kit/common" "$requirement" 2>/dev/null ||
        "$python" -m pip wheel --quiet --no-deps -w "$kit/common" "$requirement"
done
download "$kit/transformers" transformers==5.23.0 # the first with packed rows on a GPU
for requirement in $(versions transformers | grep -v 5.23); do
    download "$kit/automodel" "$requirement" # the version that Automodel asks for
done

# Mamba's kernels: those in Triton as they are, those in CUDA for one kind of GPU.
cat > "$scratch/nvcc" <<'NVCC'
#!/usr/bin/env python3
import os, sys
words, kept = [word for word in sys.argv[1:] if word != "-lineinfo"], ["--compress-mode=size"]
while words:
    word = words.pop(0)
    group = [word, words.pop(0)] if word == "-gencode" else [word]
    kept += group if word != "-gencode" or "sm_90" in group[1] else []
cuda = os.environ["CUDA_HOME"]
os.execv(f"{cuda}/bin/nvcc", [f"{cuda}/bin/nvcc", *kept])
NVCC
chmod +x "$scratch/nvcc"
tools=$(dirname "$python")
export CUDA_HOME=${CUDA_HOME:-/usr/local/cuda} PYTORCH_NVCC=$scratch/nvcc PATH=$tools:$PATH
cccl=$("$python" -c 'import nvidia.cu13; print(nvidia.cu13.__path__[0])')/include/cccl
for package in $(versions mamba-ssm causal-conv1d); do
    CPATH=$cccl NVCC_PREPEND_FLAGS=-I$cccl MAMBA_FORCE_BUILD=TRUE MAMBA_SKIP_CUDA_BUILD=TRUE \
        CAUSAL_CONV1D_FORCE_BUILD=TRUE "$python" -m pip wheel --quiet --no-deps --no-build-isolation --no-binary :all: \
        -w "$kit/common" "$package"
done
# Unpacked and in one archive, in which what two versions of a package share is there once.
site=$scratch/site
for part in common transformers automodel; do
    "$python" -m pip install --quiet --no-index --no-deps --no-compile --target "$site/$part" "$kit/$part"/*.whl
done
: > "$site/common/selective_scan_cuda.py" # Mamba-1's compiled module, which mamba-ssm imports and no model here uses
tar -c --sort=name -C "$site" common transformers automodel | xz -T1 --lzma2=preset=4,dict=192MiB > "$carried/site.tar.xz"

cat > "$carried/activate.sh" <<'ACTIVATE'
site=${GPU_KIT_SITE:-/tmp/gpu-kit}
mkdir -p "$site"
python3 -c 'import sys, tarfile; tarfile.open(sys.argv[1]).extractall(sys.argv[2], filter="tar")' \
    "$(dirname "${BASH_SOURCE[0]}")/site.tar.xz" "$site"
export PYTHONPATH=$site/common${PYTHONPATH:+:$PYTHONPATH}
export NEWER_TRANSFORMERS=$site/transformers AUTOMODEL_TRANSFORMERS=$site/automodel
ACTIVATE
du -sh --apparent-size "$carried"
