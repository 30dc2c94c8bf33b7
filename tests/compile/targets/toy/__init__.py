"""A family of its own: an NPU that looks the results of chains of unary functions up, with its delegate and simulator.

What a family needs is here and nowhere else: this folder, its place in the list of families, and `delegate.cpp`.
"""

CHIP = """
name = "toyboard"
title = "Toy board"
source = "imagination"
core = { name = "cortex-m33", clock_mhz = 100 }
target = [{ name = "toyboard-toy", title = "Toy", aliases = ["toyboard"] }]

[npu]
family = "toy"
variant = "T1"
clock_mhz = 50
lanes = 4
"""
MAGIC = b"TOY1"
