"""Tokenizers as folders: the user's, and the tiny one made here."""
