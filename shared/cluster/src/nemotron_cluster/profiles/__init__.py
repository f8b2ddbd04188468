"""Profiles of machines, from env.toml."""
