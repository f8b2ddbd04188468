"""Support for machines without a network: fetch everything into a folder, and build an environment from it."""
