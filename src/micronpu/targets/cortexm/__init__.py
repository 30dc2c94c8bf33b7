"""What the NPU leaves over, on the Cortex-M core: the arithmetic of `executorch.backends.cortex_m`."""
