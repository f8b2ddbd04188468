"""Models and tokenizers from outside: from the hub, from a folder, from a Megatron checkpoint, as artifacts."""
