"""The parts of benchmarks/data_prep.py: corpus, tokenizers, measuring, peers."""
