"""The front door: from a model to a finished program, step by step."""
