"""Supervised fine-tuning: chats and a base model in, instruct model out."""
