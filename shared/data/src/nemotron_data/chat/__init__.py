"""Chat data: rows to messages, messages to text, and assistant spans."""
