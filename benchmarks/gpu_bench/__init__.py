"""The parts of benchmarks/gpu.py and of the tests in tests/gpu."""
