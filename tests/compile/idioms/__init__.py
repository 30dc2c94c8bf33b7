"""Small networks as their users write them, from many fields, with inputs in units of their own."""

from tests.compile.idioms import geometry, heads, sequences, signals, vision
from tests.compile.idioms.networks import NETWORKS

__all__ = ["ALL", "geometry", "heads", "sequences", "signals", "vision"]

ALL = tuple(NETWORKS)
"""The names of all."""
