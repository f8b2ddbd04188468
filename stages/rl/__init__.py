"""Reinforcement learning: questions with checkable answers and an instruct model in, aligned model out."""
