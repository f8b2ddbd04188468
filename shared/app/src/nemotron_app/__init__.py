"""The `nemotron` command. Commands are listed in one table (`main.py`), not in a tree that mirrors the stages."""
