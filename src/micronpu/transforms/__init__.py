"""Transform a model before it is compiled: sparse, compressed, streaming."""
