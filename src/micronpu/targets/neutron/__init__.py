"""NXP eIQ Neutron."""

BACKEND = "NeutronBackend"
"""Name of the delegate in the runtime's registry."""
