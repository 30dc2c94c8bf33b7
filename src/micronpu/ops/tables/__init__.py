"""Operators and functions implemented as lookup tables."""
