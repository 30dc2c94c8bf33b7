"""Partitioning: which nodes of a program run on which processor, and why."""
