"""Data preparation: reading rows, splits, tokenized and packed formats, chat templates, and rejected rows."""
