"""Decisions of our trainers that no setting shows: a training that began under another one is not continued. No torch.

An engine names them in `rules`; a change of one here, or a new one, is a line in docs/upgrading.md.
"""

TRAINING = {"weight decay": "by role"}
"""Of transformers' Trainer and TRL's, in our hands. Until November 2026 weight decay went by names, and the optimizer's
groups of parameters in checkpoints were others."""
