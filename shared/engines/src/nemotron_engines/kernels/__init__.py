"""Reference kernels: Mamba and experts in plain torch, where the CUDA packages cannot run."""

LARGEST_REFERENCE_MODEL = 1e9  # parameters on the pure-torch code; beyond it, hours would pass before anybody noticed
