"""Reference kernels: Mamba and experts in plain torch, for machines where the CUDA packages cannot run."""

HOW_TO_COMPILE = (
    "compile mamba-ssm and causal-conv1d on a node with nvcc: nemotron airgap build FOLDER (docs/airgap.md)"
)
LARGEST_REFERENCE_MODEL = 1e9  # parameters on the pure-torch code; a larger model would waste hours unnoticed
