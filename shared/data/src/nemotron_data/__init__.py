"""Data: reading rows, splitting, tokenized and packed formats, chat templates, and what was refused on the way."""
