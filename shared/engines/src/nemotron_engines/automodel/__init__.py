"""NeMo Automodel as a training engine: environment, CPU shim, translated config, run loop, adapters and export."""
