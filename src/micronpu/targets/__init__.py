"""What is special about each kind of NPU, and the one list of them."""
