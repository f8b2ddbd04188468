"""`nemotron data inspect`: show what a prepared data set holds before a model is trained on it."""

from nemotron_app.inspect.measure import Inspection, Options, inspect_data

__all__ = ["Inspection", "Options", "inspect_data"]
