"""Engine blocks that several stages share, found by the config composer through an entry point."""
