"""Reproduce an artifact from its manifest, and compare the bytes."""
