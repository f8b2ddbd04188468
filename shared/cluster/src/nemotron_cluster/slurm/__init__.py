"""Slurm: its scripts, its answers."""
