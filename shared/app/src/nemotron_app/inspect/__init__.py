"""`nemotron data inspect`: what a prepared set holds, shown to people before a model is trained on it."""

from nemotron_app.inspect.build import Inspection, Options, inspect_data

__all__ = ["Inspection", "Options", "inspect_data"]
