"""Torch code that models need: the Mamba operators for any device, experts for a CPU, packed documents."""
