"""Verification cards: what was measured of each family, by which command, on which code."""
