"""Definitions of images: see docs/airgap.md."""
