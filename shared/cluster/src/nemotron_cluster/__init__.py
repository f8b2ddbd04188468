"""Run stages on other machines: Slurm clusters, containers and clouds."""
