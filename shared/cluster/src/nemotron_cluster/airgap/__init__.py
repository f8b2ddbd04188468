"""Machines without a network: what is brought to them in a folder, and an environment made from that folder alone."""
