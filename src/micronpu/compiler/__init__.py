"""The front door: model to program, along the way that DESIGN describes."""
