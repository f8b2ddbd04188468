"""Environments: what answers a model's tool calls or turns over HTTP, and rewards the episode."""
