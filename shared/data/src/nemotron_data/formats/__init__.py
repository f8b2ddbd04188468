"""What prepared data looks like on the disk: one module for each format, with an example of it on top."""
