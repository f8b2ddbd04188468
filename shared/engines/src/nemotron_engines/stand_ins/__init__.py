"""Stand-ins for a GPU and for CUDA packages: fakes, stubs, disabled settings. Never used on a machine with a GPU."""
