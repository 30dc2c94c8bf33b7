"""TOSA forms shared by several operators."""
