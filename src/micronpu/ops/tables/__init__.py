"""Operators and functions that are a table of their input."""
