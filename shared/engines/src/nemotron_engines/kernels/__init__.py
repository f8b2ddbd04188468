"""Reference kernels: Mamba and experts in plain torch, where the CUDA packages cannot run."""
