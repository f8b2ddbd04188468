"""The contract by which a step hands its work to a library."""
