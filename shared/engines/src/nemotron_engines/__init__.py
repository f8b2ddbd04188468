"""The engines that train: ours over transformers, and the field's own behind the same settings."""
