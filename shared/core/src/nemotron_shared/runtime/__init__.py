"""Everything between a command line and a published artifact."""
