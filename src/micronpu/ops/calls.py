"""Overloads that stages of the compiler append to a graph.

Their arguments are those of the functions of torch that have these names.
"""

BOTH, CHOICE, PRODUCT = "logical_and.default", "where.self", "mul.Tensor"
CLONE, CONVERSION, FLIPPED_BITS = "clone.default", "to.dtype", "bitwise_xor.Scalar"
CONCATENATION, CUT, PADDING = "cat.default", "slice.Tensor", "constant_pad_nd.default"
BROADCAST, PERMUTATION, SQUEEZED = "expand_copy.default", "permute_copy.default", "squeeze.dims"
NEGATED_VIEW, NEGATIVE = "_neg_view.default", "neg.default"
UNINITIALIZED = "empty.memory_format"
ALL_UNINITIALIZED = (UNINITIALIZED, "empty_like.default", "new_empty.default", "empty_strided.default")
"""The contents of their results are undefined."""
