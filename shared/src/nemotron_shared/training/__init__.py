"""What the engines that build on the Hugging Face Trainer share."""
