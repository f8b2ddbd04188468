"""Pretraining: text in, base model out."""
