"""What quantization costs: programs judged on data, layers blamed, cures tried."""
