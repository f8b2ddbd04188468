"""Faults put into real steps, and what is left after them: `nemotron prove faults`."""
