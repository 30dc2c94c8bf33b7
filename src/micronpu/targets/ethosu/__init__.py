"""Arm Ethos-U."""
