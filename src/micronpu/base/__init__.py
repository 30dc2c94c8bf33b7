"""The lowest layer: utilities that every package may use and that do not depend on networks."""
