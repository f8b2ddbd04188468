"""The operating system as we use it: files, locks, processes, terminal."""
