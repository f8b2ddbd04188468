"""Profiles: what env.toml says about machines."""
