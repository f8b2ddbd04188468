"""Slurm: job scripts, submission and job state."""
