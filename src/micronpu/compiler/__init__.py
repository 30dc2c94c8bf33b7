"""`micronpu.compile` and `micronpu.check`: from a model to a finished program, step by step."""
