"""Evaluation: models in, scores with error bars out."""
