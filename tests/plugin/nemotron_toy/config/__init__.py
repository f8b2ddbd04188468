"""Config groups of this package: `engine/toy.yaml`."""
