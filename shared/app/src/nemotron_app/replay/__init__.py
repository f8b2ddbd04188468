"""Reproduce an artifact from its lineage, and compare the bytes."""
