"""One resolved, typed configuration for every entry point."""
