"""Torch code for models: Mamba operators for any device, experts for a CPU, packed documents."""
