"""A model into another one before it is compiled: sparse, compressed, streaming."""
