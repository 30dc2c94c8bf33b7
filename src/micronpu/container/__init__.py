"""The header of a payload and the open container with the host's program, shared by the backends."""
