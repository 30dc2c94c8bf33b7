"""Arm Ethos-U."""

BACKEND = "EthosUBackend"
"""Name by which the runtime looks up the delegate."""
