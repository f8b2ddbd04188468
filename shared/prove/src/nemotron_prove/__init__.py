"""Proofs that anyone can run: `nemotron prove`."""
