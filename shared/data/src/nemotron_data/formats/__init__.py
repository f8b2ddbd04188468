"""File formats of prepared data, one module for each, with an example at the top."""
