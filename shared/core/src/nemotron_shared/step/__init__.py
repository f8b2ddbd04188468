"""One start of a step, from its command line to its published artifact."""
