"""Conversations: rows to messages, messages to text, and which of it the assistant wrote."""
