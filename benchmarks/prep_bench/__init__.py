"""Modules for benchmarks/data_prep.py: corpus, tokenizers, measuring, peers."""
