"""Non-delegated operators on a Cortex-M core, with the arithmetic of `executorch.backends.cortex_m`."""
