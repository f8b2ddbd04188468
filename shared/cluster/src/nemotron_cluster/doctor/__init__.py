"""Checks of a machine and of a cluster before anything runs there."""
