"""The report at the end of a pipeline: a table in the terminal and a self-contained HTML page."""

from nemotron_app.report.command import Report, build_report

__all__ = ["Report", "build_report"]
