"""NXP eIQ Neutron."""

BACKEND = "NeutronBackend"
"""Name by which the runtime looks up the delegate."""
