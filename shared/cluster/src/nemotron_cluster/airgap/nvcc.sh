#!/usr/bin/env bash
# nvcc for the GPUs that are here. The setup.py of Mamba's packages names nine generations of GPUs and reads no
# TORCH_CUDA_ARCH_LIST, and every generation takes as long as the first.
#   NEMOTRON_NVCC   the real one      NEMOTRON_ARCHITECTURES   "90" or "80 90"
words=()
while (($#)); do
    case $1 in
        -gencode | --generate-code) shift ;;
        -gencode=* | --generate-code=*) ;;
        *) words+=("$1") ;;
    esac
    shift
done
for architecture in $NEMOTRON_ARCHITECTURES; do
    words+=(-gencode "arch=compute_$architecture,code=sm_$architecture")
done
exec "$NEMOTRON_NVCC" "${words[@]}"
