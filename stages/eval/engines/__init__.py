"""Engines of this stage: one module each, with `evaluate(task, model, ...)`."""
