"""Run models: in a terminal, over HTTP, and for a file of prompts."""
