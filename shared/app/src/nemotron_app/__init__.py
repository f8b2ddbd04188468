"""The `nemotron` command. Commands are listed in one table (`table.py`), not in a tree that mirrors the stages."""
