"""Distances, similarities and moments: decompositions into sums, products and roots."""

from __future__ import annotations

from typing import Any

import numpy as np

from micronpu.ir.lowering import Float, Results, Writer, decomposes
from micronpu.ops.elementwise import power, scaled


def _root_of_sum(write: Writer, terms: Float, axes: list[int], keep: bool) -> Float:
    return power(write, write("sum.dim_IntList", terms, axes, keep), 0.5)


@decomposes("cosine_similarity.default")
def _cosine(write: Writer) -> Float:
    """cosine_similarity(x, z) -> sum(x' * z'), with x' = x * rsqrt(sum(x * x)) and z' alike"""
    given = write.given
    axes = [int(given["dim"])]
    smallest = float(given["eps"]) ** 2

    def normal(x: Float) -> Float:
        total = write("sum.dim_IntList", write("mul.Tensor", x, x), axes, True)
        return write("mul.Tensor", x, write("rsqrt.default", write("clamp.default", total, max(smallest, 1e-12))))

    product = write("mul.Tensor", normal(given["x1"]), normal(given["x2"]))
    return write("sum.dim_IntList", product, axes, False)


@decomposes("hypot.default", "hypot_.default")
def _hypotenuse(write: Writer) -> Float:
    """hypot(x, z) -> sqrt(x * x + z * z)"""
    squares = (write("mul.Tensor", v, v) for v in (write.given["self"], write.given["other"]))
    return power(write, write("add.Tensor", *squares), 0.5)


@decomposes("cross.default", "linalg_cross.default")
def _cross_product(write: Writer) -> Float:
    """cross(x, z) -> x[1, 2, 0] * z[2, 0, 1] - x[2, 0, 1] * z[1, 2, 0]"""
    x, z, axis = write.given["self"], write.given["other"], write.given["dim"]
    shape = write.shape()
    if axis is None:  # the first axis with three elements
        axis = next((i for i, n in enumerate(shape) if n == 3), None)
    if axis is None or len(write.shape(x)) != len(write.shape(z)):
        return None

    def turned(v: Float, by: int) -> Float:
        return write("roll.default", v, [by], [int(axis)])

    positive = write("mul.Tensor", turned(x, 2), turned(z, 1))
    return write("sub.Tensor", positive, write("mul.Tensor", turned(x, 1), turned(z, 2)))


@decomposes("pairwise_distance.default")
def _distance(write: Writer) -> Float:
    """pairwise_distance(x, z) -> norm(x - z + eps) along the last axis, of order 1 or 2"""
    given = write.given
    order = float(given["p"])
    if order not in (1.0, 2.0):
        return None
    apart = write("add.Tensor", write("sub.Tensor", given["x1"], given["x2"]), write.constant(float(given["eps"])))
    if order == 1.0:
        return write("sum.dim_IntList", write("abs.default", apart), [-1], bool(given["keepdim"]))
    return _root_of_sum(write, write("mul.Tensor", apart, apart), [-1], bool(given["keepdim"]))


@decomposes("cdist.default", "_cdist_forward.default", "_euclidean_dist.default")
def _distances(write: Writer) -> Float:
    """cdist(x [.., P, M], z [.., R, M]) -> norm of x[.., P, 1, M] - z[.., 1, R, M], of order 1 or 2"""
    given = write.given
    order = float(given.get("p", 2.0))
    if order not in (1.0, 2.0):
        return None
    apart = write(
        "sub.Tensor", write("unsqueeze.default", given["x1"], -2), write("unsqueeze.default", given["x2"], -3)
    )
    if order == 1.0:
        return write("sum.dim_IntList", write("abs.default", apart), [-1], False)
    return _root_of_sum(write, write("mul.Tensor", apart, apart), [-1], False)


@decomposes("logsumexp.default")
def _log_of_sum(write: Writer) -> Float:
    """logsumexp(x) -> m + log(sum(exp(x - m))), m = max(x)"""
    given = write.given
    x, axes, keep = given["self"], [int(d) for d in given["dim"]], bool(given["keepdim"])
    if not axes:
        return None
    largest = write("amax.default", x, axes, True)
    total = write("sum.dim_IntList", write("exp.default", write("sub.Tensor", x, largest)), axes, True)
    y = write("add.Tensor", largest, write("log.default", total))
    return y if keep else write("reshape.default", y, list(write.shape()))


_VARIANCES = {"var": "var.dim", "std": "std.dim"}


@decomposes(*(f"{name}.{form}" for name in ("var_mean", "std_mean") for form in ("default", "dim", "correction")))
def _moments(write: Writer) -> Float:
    """var_mean(x) -> var(x), mean(x)"""
    given = write.given
    x, read = given["self"], write.read()
    if read is None:
        return None
    axes = [int(d) for d in given.get("dim") or range(len(write.shape(x)))]
    keep = bool(given.get("keepdim"))
    correction = given.get("correction", 1 if given.get("unbiased", True) else 0)
    if correction not in (None, 0, 1):
        return None
    values: dict[int, Float] = {}
    if 0 in read:
        values[0] = write(_VARIANCES[write.overload[:3]], x, axes, correction != 0, keep)
    if 1 in read:
        values[1] = write("mean.dim", x, axes, keep)
    return Results(values)


@decomposes("addcmul.default", "addcdiv.default")
def _sum_with_product(write: Writer) -> Float:
    """addcmul(x, a, b) -> x + value * (a * b); addcdiv divides"""
    given = write.given
    overload = "mul.Tensor" if "mul" in write.overload else "div.Tensor"
    product = write(overload, given["tensor1"], given["tensor2"])
    return write("add.Tensor", given["self"], scaled(write, product, float(given["value"])))


@decomposes("lerp.Scalar", "lerp.Tensor")
def _between(write: Writer) -> Float:
    """lerp(x, z, w) -> x + w * (z - x)"""
    given = write.given
    weight = given["weight"]
    apart = write("sub.Tensor", given["end"], given["self"])
    part = (
        scaled(write, apart, float(weight)) if isinstance(weight, (int, float)) else write("mul.Tensor", apart, weight)
    )
    return write("add.Tensor", given["self"], part)


@decomposes("outer.default", "ger.default", early=True)
def _outer(write: Writer) -> Float:
    """outer(x, z) -> x [N, 1] * z [1, M]"""
    given = write.given
    second: Any = given["vec2"]
    return write("mul.Tensor", write("unsqueeze.default", given["self"], 1), write("unsqueeze.default", second, 0))


@decomposes("prod.dim_int", "prod.default")
def _product_along(write: Writer) -> Float:
    """prod(x) -> products of halves, with powers of two as sizes as far as possible"""
    given = write.given
    x = given["self"]
    if "dim" in given:
        axis, keep = int(given["dim"]) % len(write.shape(x)), bool(given["keepdim"])
    else:
        x, axis, keep = write("reshape.default", x, [-1]), 0, False
    while (size := write.shape(x)[axis]) > 1:
        half = size // 2
        parts = [write("slice.Tensor", x, axis, i * half, (i + 1) * half) for i in (0, 1)]
        product = write("mul.Tensor", *parts)
        if size % 2:
            product = write("cat.default", [product, write("slice.Tensor", x, axis, size - 1, size)], axis)
        x = product
    return x if keep else write("reshape.default", x, list(write.shape()))


@decomposes("clamp.Tensor", "clamp_.Tensor")
def _between_tensors(write: Writer) -> Float:
    """clamp(x, low, high) -> minimum(maximum(x, low), high), of tensors"""
    given = write.given
    x = given["self"]
    for name, overload in (("min", "maximum.default"), ("max", "minimum.default")):
        if given[name] is not None:
            x = write(overload, x, given[name])
    return x


@decomposes("bilinear.default")
def _bilinear(write: Writer) -> Float:
    """bilinear(x, z) -> sum(linear(x, w) * z) + b

    x [N, I] -> linear(w [O * J, I]) -> [N, O, J] -> * z [N, 1, J] -> sum over J -> + b -> y [N, O]
    """
    given = write.given
    weight = write.stored(given["weight"])
    if weight is None or write.is_trained(given["weight"]) or len(write.shape(given["input1"])) != 2:
        return None
    outputs, inner, other = weight.shape
    flat = np.ascontiguousarray(weight.transpose(0, 2, 1).reshape(outputs * other, inner))
    rows = write.shape(given["input1"])[0]
    mixed = write("linear.default", given["input1"], write.constant(flat))
    product = write(
        "mul.Tensor",
        write("reshape.default", mixed, [rows, outputs, other]),
        write("unsqueeze.default", given["input2"], 1),
    )
    y = write("sum.dim_IntList", product, [-1], False)
    return y if given["bias"] is None else write("add.Tensor", y, given["bias"])
