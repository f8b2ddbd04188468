"""The `nemotron` command: one table, no tree that mirrors the stages."""
