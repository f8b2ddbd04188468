"""Our training loop on the Hugging Face Trainer."""
