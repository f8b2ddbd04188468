"""The record that a run keeps while it works."""
