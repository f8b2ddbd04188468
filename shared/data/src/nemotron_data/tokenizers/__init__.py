"""Tokenizer folders: the user's, and the tiny one built here."""
