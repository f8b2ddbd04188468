"""Training with Megatron-Bridge, shared by the pretrain and SFT stages. Nothing here imports it at module level."""
