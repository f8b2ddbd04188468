"""Engines of this stage: one module each, with `train(task) -> Outcome`."""
