"""Make an artifact again from its lineage, and compare the bytes."""
