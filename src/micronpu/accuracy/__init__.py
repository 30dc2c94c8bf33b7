"""Accuracy of quantized models: evaluate programs, attribute the error to layers, and try fixes."""
