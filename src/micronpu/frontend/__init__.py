"""Exported programs: exported and checked, read node by node, and imported as graphs."""
