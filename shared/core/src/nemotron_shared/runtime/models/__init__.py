"""Import models and tokenizers from the hub, a folder or a Megatron checkpoint as artifacts."""
