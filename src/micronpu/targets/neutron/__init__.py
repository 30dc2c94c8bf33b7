"""NXP eIQ Neutron."""
