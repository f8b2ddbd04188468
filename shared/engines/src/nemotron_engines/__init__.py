"""Training engines: our own over transformers, and other libraries behind the same settings."""
