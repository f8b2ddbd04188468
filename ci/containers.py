"""Write tests/containers.yaml: names of the packages that are in the containers which recipes name.

    uv run --with packaging python ci/containers.py PROJECT=CHECKOUT ...

An image is made from a lock file of its project: NeMo-RL's docker/Dockerfile ends with `uv sync --all-groups`,
Megatron-Bridge's with `--all-extras --all-groups` over an image of PyTorch. CHECKOUT is a git directory that has the
commits in tests/containers.yaml; only names are taken from it. tests/test_containers.py says what they are for.
"""
