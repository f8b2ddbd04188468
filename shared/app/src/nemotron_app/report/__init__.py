"""The report at the end of a pipeline: a table in the terminal and a self-contained HTML page."""
