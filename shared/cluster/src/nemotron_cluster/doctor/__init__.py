"""Check a machine or a cluster before anything runs there."""
