"""Stand-ins for a GPU and for CUDA packages: fakes, stubs, settings switched off. Never used where there is one."""
