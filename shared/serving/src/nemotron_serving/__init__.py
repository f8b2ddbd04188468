"""Answers with a model that was made: in a terminal, over HTTP, and for a file of prompts."""
