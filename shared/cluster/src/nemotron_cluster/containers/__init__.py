"""Image definitions: see docs/airgap.md."""
