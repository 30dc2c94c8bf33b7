"""What is compiled for where nobody says it."""

DEFAULT_TARGET = "imxrt700-neutron-cortexm"
SPARSE_TARGET = "ethos-u85-256"
"""Of `micronpu.sparsify`: the one that computes sparse layers in half the cycles."""
