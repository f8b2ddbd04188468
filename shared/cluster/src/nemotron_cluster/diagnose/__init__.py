"""Diagnose failed jobs: known error messages, what they mean and what to do."""
