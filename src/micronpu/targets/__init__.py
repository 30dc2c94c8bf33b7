"""NPU backends and their registry."""
