"""The computer that a step runs on, described without importing torch."""
