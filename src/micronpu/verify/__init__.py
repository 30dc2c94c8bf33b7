"""Judgement of a program: against the quantized model, against the float model, and by static checks."""
