"""Modules for benchmarks/gpu.py and the tests in tests/gpu."""
