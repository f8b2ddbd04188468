"""A stage from outside the repository: it asks a served model, and keeps the answers that a reward accepts."""
