"""Arm Ethos-U."""

BACKEND = "EthosUBackend"
"""Name of the delegate in the runtime's registry."""
