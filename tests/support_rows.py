"""One program for each ATen overload of the registry of ways: what the support tables say is found with these.

A row is a call of the overload on some of `Inputs`; an overload that is not given here is called with ``x`` alone.
Forms in place have no row: a program that is compiled holds the plain ones.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

import micronpu.ops  # noqa: F401  (fills the registry)
from micronpu.ir.lowering import LOWERINGS


@dataclass(frozen=True)
class Inputs:
    """Values that a row may call its overload on.

    Attributes:
        x, y: [1, 8, 8], random around zero.
        matrix, other: [8, 8], x and y without their first axis.
        image: [1, 8, 8, 8], as x.
        volume: [1, 2, 4, 6, 6], as x.
        positions: [3, 2] integers from 0 to 4.
        positive: as x, at least 0.5.
        large: as x, at least 1.5.
        unit: as x, from -0.9 to 0.9.
    """

    x: Tensor
    y: Tensor
    matrix: Tensor
    other: Tensor
    image: Tensor
    volume: Tensor
    positions: Tensor
    positive: Tensor
    large: Tensor
    unit: Tensor


Call = Callable[[Any, Inputs], Any]


def _c(*shape: int) -> Tensor:
    """A constant."""
    count = torch.Size(shape).numel()
    return (torch.linspace(-1, 1, count) + 0.1 * torch.arange(count).remainder(3)).reshape(shape)


MATRIX, KERNEL, KERNEL1, KERNEL3, ROW = _c(8, 8), _c(8, 8, 3, 3), _c(8, 8, 3), _c(8, 2, 3, 3, 3), _c(8)
MEAN, VARIANCE = 0.1 * ROW, ROW.abs() + 0.5
PICKS, PLACES = torch.tensor([0, 1, 3]), torch.tensor([[[1, 2], [3, 4], [0, 0], [7, 1]] * 2])
MASK = torch.ones(8, 8).tril() == 0
STATE = torch.zeros(1, 1, 8)
TABLE = _c(5, 8)
CUBES = _c(2, 2, 2, 2, 2)


def _cells(gates: int) -> list[Tensor]:
    return [0.3 * _c(*shape) for shape in ((8 * gates, 8), (8 * gates, 8), (8 * gates,), (8 * gates,))]


GRU, LSTM, RNN = _cells(3), _cells(4), _cells(1)
_RNN_OPTIONS = (True, 1, 0.0, False, False, True)


def _with(*arguments: Any) -> Call:
    return lambda op, i: op(i.x, *arguments)


def _image(*arguments: Any) -> Call:
    return lambda op, i: op(i.image, *arguments)


def _volume(*arguments: Any) -> Call:
    return lambda op, i: op(i.volume, *arguments)


def _truths(*arguments: Any) -> Call:
    return lambda op, i: op(i.x > 0, *arguments).float()


def _two_truths(op: Any, i: Inputs) -> Any:
    return op(i.x > 0, i.y > 0).float()


def _joined(*arguments: Any) -> Call:
    return lambda op, i: torch.cat([part.reshape(-1) for part in op(i.x, *arguments)])


def _pair(op: Any, i: Inputs) -> Any:
    return op(i.x, i.y)


def _list(op: Any, i: Inputs) -> Any:
    return op([i.x, i.y])


def _parts(*arguments: Any) -> Call:
    """The first two parts of several."""
    return lambda op, i: tuple(op(i.x, *arguments))[:2]


def _first(*arguments: Any) -> Call:
    return lambda op, i: op(i.image, *arguments)[0]


_BATCH_NORM = (ROW, MEAN, MEAN, VARIANCE)

_GIVEN: dict[str, Call] = {
    "_adaptive_avg_pool2d.default": _image([4, 4]),
    "_assert_tensor_metadata.default": lambda op, i: (op(i.x, dtype=torch.float32), i.x + i.y)[1],
    "_log_softmax.default": _with(-1, False),
    "_native_batch_norm_legit_no_training.default": _first(*_BATCH_NORM, 0.1, 1e-5),
    "_pad_circular.default": _image([1, 1, 1, 1]),
    "_prelu_kernel.default": _image(ROW.reshape(1, 8, 1, 1)),
    "_reshape_copy.default": _with([8, 8]),
    "_softmax.default": _with(-1, False),
    "_unsafe_view.default": _with([8, 8]),
    "acosh.default": lambda op, i: op(i.large),
    "adaptive_avg_pool1d.default": _with([4]),
    "adaptive_avg_pool2d.default": _image([4, 4]),
    "adaptive_max_pool1d.default": lambda op, i: op(i.x, [4])[0],
    "adaptive_max_pool2d.default": _first([4, 4]),
    "add.Scalar": _with(1.5),
    "addmm.default": lambda op, i: op(ROW, i.matrix, MATRIX),
    "addmv.default": lambda op, i: op(i.other[0], i.matrix, i.matrix[0]),
    "adjoint.default": lambda op, i: op(i.x) + 0.5,
    "alpha_dropout.default": _with(0.5, False),
    "amax.default": _with([-1]),
    "amin.default": _with([-1]),
    "argmax.default": lambda op, i: op(torch.cat([i.image] * 4, 2), 1).float(),  # few are for the core
    "argmin.default": lambda op, i: op(torch.cat([i.image] * 4, 2), 1).float(),  # few are for the core
    "avg_pool1d.default": _with([2]),
    "avg_pool2d.default": _image([2, 2]),
    "baddbmm.default": lambda op, i: op(i.x, i.x, i.y.transpose(1, 2)),
    "batch_norm.default": _image(*_BATCH_NORM, False, 0.1, 1e-5, False),
    "bmm.default": lambda op, i: op(i.x, i.y.transpose(1, 2)),
    "broadcast_to.default": lambda op, i: op(i.x[:, :1], [1, 8, 8]),
    "channel_shuffle.default": _image(2),
    "chunk.default": _parts(2, -1),
    "clamp.default": _with(-0.5, 0.75),
    "clamp_max.default": _with(0.7),
    "clamp_min.default": _with(-0.3),
    "constant_pad_nd.default": _with([1, 1]),
    "conv1d.default": lambda op, i: op(i.x, KERNEL1, ROW),
    "conv1d.padding": lambda op, i: op(i.x, KERNEL1, ROW, [1], "same"),
    "conv2d.default": _image(KERNEL, ROW),
    "conv2d.padding": _image(KERNEL, ROW, [1, 1], "same"),
    "conv3d.default": lambda op, i: op(i.volume, KERNEL3, ROW),
    "conv_transpose1d.default": lambda op, i: op(i.x, KERNEL1, ROW),
    "conv_transpose2d.input": _image(KERNEL, ROW, [2, 2]),
    "convolution.default": _image(KERNEL, ROW, [1, 1], [1, 1], [1, 1], False, [0, 0], 1),
    "cudnn_batch_norm.default": lambda op, i: torch.ops.aten.batch_norm.default(
        i.image, *_BATCH_NORM, False, 0.1, 1e-5, False
    ),
    "cross.default": lambda op, i: op(i.x[..., :3], i.y[..., :3], -1),
    "cumprod.default": _with(-1),
    "cumsum.default": _with(-1),
    "div.Scalar": _with(3.0),
    "div.Scalar_mode": lambda op, i: op(i.x, 3.0, rounding_mode=None),
    "div.Tensor": lambda op, i: op(i.x, i.positive),
    "div.Tensor_mode": lambda op, i: op(i.x, i.positive, rounding_mode=None),
    "dot.default": lambda op, i: op(i.matrix[0], i.other[0]),
    "dropout.default": _with(0.5, False),
    "einsum.default": lambda op, i: op("bij,bkj->bik", [i.x, i.y]),
    "embedding.default": lambda op, i: op(TABLE, i.positions),
    "eq.Tensor": lambda op, i: op(i.x, i.y).float(),
    "expand.default": lambda op, i: op(i.x[:, :1], [1, 8, 8]),
    "expand_as.default": lambda op, i: op(i.x[:, :1], i.y),
    "expand_copy.default": lambda op, i: op(i.x[:, :1], [1, 8, 8]),
    "feature_alpha_dropout.default": _with(0.5, False),
    "feature_dropout.default": _with(0.5, False),
    "flip.default": _with([1]),
    "fmod.Scalar": _with(2 / 3),
    "gather.default": _with(2, PLACES),
    "group_norm.default": _image(2, ROW, ROW),
    "gru.input": lambda op, i: op(i.x, STATE, GRU, *_RNN_OPTIONS)[0],
    "im2col.default": _image([2, 2], [1, 1], [0, 0], [2, 2]),
    "index.Tensor": lambda op, i: op(i.x, [None, PICKS]),
    "index_select.default": _with(1, PICKS),
    "instance_norm.default": _image(ROW, ROW, None, None, True, 0.1, 1e-5, False),
    "layer_norm.default": _with([8], ROW, ROW),
    "leaky_relu.default": _with(0.1),
    "linalg_vector_norm.default": _with(2, [-1]),
    "linear.default": _with(MATRIX, ROW),
    "log.default": lambda op, i: op(i.positive),
    "log10.default": lambda op, i: op(i.positive),
    "log1p.default": lambda op, i: op(i.positive),
    "log2.default": lambda op, i: op(i.positive),
    "log_softmax.int": _with(-1),
    "logit.default": lambda op, i: op(i.positive, 0.05),
    "lstm.input": lambda op, i: op(i.x, [STATE, STATE], LSTM, *_RNN_OPTIONS)[0],
    "masked_fill.Scalar": lambda op, i: torch.softmax(op(i.x, MASK, -1e9), -1),
    "masked_fill.Tensor": lambda op, i: op(i.x, i.x > i.y, torch.tensor(0.5)),
    "matmul.default": lambda op, i: op(i.x, i.y.transpose(1, 2)),
    "matrix_H.default": lambda op, i: op(i.matrix) + 0.5,
    "max.dim": lambda op, i: op(i.x, -1)[0],
    "max_pool1d.default": _with([2]),
    "max_pool1d_with_indices.default": lambda op, i: op(i.x, [2])[0],
    "max_pool2d.default": _image([2, 2]),
    "max_pool2d_with_indices.default": _first([2, 2]),
    "mean.dim": _with([-1]),
    "min.dim": lambda op, i: op(i.x, -1)[0],
    "mm.default": lambda op, i: op(i.matrix, i.other),
    "moveaxis.int": _with(0, 1),
    "moveaxis.intlist": _with([0], [1]),
    "movedim.int": _with(0, 1),
    "movedim.intlist": _with([0], [1]),
    "mul.Scalar": _with(2.5),
    "mv.default": lambda op, i: op(i.matrix, i.other[0]),
    "narrow.default": _with(1, 1, 2),
    "narrow_copy.default": _with(1, 1, 2),
    "native_channel_shuffle.default": _image(2),
    "numpy_T.default": lambda op, i: op(i.matrix),
    "pad.default": _with([1, 1]),
    "permute.default": _with([1, 0, 2]),
    "permute_copy.default": _with([1, 0, 2]),
    "pixel_shuffle.default": _image(2),
    "pixel_unshuffle.default": _image(2),
    "pow.Scalar": lambda op, i: op(2.5, i.x),
    "pow.Tensor_Scalar": _with(2),
    "prelu.default": _image(ROW),
    "reciprocal.default": lambda op, i: op(i.positive),
    "reflection_pad1d.default": _with([1, 1]),
    "reflection_pad2d.default": _image([1, 1, 1, 1]),
    "reflection_pad3d.default": lambda op, i: op(i.volume, [1, 1, 1, 1, 1, 1]),
    "remainder.Scalar": _with(2 / 3),
    "repeat.default": _with([1, 2, 1]),
    "repeat_interleave.self_int": _with(2, 1),
    "replication_pad1d.default": _with([1, 1]),
    "replication_pad2d.default": _image([1, 1, 1, 1]),
    "replication_pad3d.default": lambda op, i: op(i.volume, [1, 1, 1, 1, 1, 1]),
    "reshape.default": _with([8, 8]),
    "rms_norm.default": _with([8], ROW),
    "rnn_relu.input": lambda op, i: op(i.x, STATE, RNN, *_RNN_OPTIONS)[0],
    "rnn_tanh.input": lambda op, i: op(i.x, STATE, RNN, *_RNN_OPTIONS)[0],
    "roll.default": _with([1], [1]),
    "rsqrt.default": lambda op, i: op(i.positive),
    "rsub.Scalar": _with(1.0),
    "scaled_dot_product_attention.default": lambda op, i: op(i.x, i.y, i.x),
    "select.int": _with(1, 2),
    "select_copy.int": _with(1, 2),
    "slice.Tensor": _with(1, 1, 3),
    "slice_copy.Tensor": _with(1, 1, 3),
    "softmax.int": _with(-1),
    "split.Tensor": _parts(2, 1),
    "split.sizes": _parts([3, 5], 1),
    "split_copy.Tensor": _parts(2, 1),
    "split_with_sizes.default": _parts([3, 5], 1),
    "split_with_sizes_copy.default": _parts([3, 5], 1),
    "sqrt.default": lambda op, i: op(i.positive),
    "squeeze.default": lambda op, i: op(i.x[:, :1]),
    "squeeze.dim": lambda op, i: op(i.x[:, :1], 1),
    "squeeze.dims": lambda op, i: op(i.x[:, :1], [1]),
    "squeeze_copy.default": lambda op, i: op(i.x[:, :1]),
    "squeeze_copy.dim": lambda op, i: op(i.x[:, :1], 1),
    "squeeze_copy.dims": lambda op, i: op(i.x[:, :1], [1]),
    "std.correction": _with([-1]),
    "std.dim": _with([-1]),
    "sub.Scalar": _with(1.5),
    "sum.dim_IntList": _with([-1]),
    "swapaxes.default": _with(0, 1),
    "swapdims.default": _with(0, 1),
    "t.default": lambda op, i: op(i.matrix),
    "t_copy.default": lambda op, i: op(i.matrix),
    "take_along_dim.default": _with(PLACES, 2),
    "tensor_split.indices": _parts([1], 1),
    "tensor_split.sections": _parts(2, 1),
    "threshold.default": _with(0.4, -1.5),
    "tile.default": _with([1, 2, 1]),
    "to.device": lambda op, i: op(i.x, "cpu", torch.float32),
    "to.dtype": _with(torch.float32),
    "topk.default": lambda op, i: op(i.x, 1)[0],
    "transpose.int": _with(0, 1),
    "transpose_copy.int": _with(0, 1),
    "true_divide.Tensor": lambda op, i: op(i.x, i.positive),
    "unbind.int": _parts(1),
    "unbind_copy.int": _parts(1),
    "unflatten.int": _with(1, [2, 4]),
    "unfold.default": _with(2, 2, 2),
    "unfold_copy.default": _with(2, 2, 2),
    "unsafe_chunk.default": _parts(2, -1),
    "unsafe_split.Tensor": _parts(2, 1),
    "unsafe_split_with_sizes.default": _parts([3, 5], 1),
    "unsqueeze.default": _with(1),
    "unsqueeze_copy.default": _with(1),
    "var.correction": _with([-1]),
    "var.dim": _with([-1]),
    "view.default": _with([8, 8]),
    "view_copy.default": _with([8, 8]),
    "where.Scalar": lambda op, i: op(i.x > i.y, 1.0, 0.25),
    "where.ScalarOther": lambda op, i: op(i.x > i.y, i.x, 0.25),
    "where.ScalarSelf": lambda op, i: op(i.x > i.y, 0.25, i.x),
    "where.self": lambda op, i: op(i.x > i.y, i.x, i.y),
    **{f"{name}.default": _list for name in ("cat", "concat", "concatenate", "dstack", "hstack", "stack", "vstack")},
    **{
        f"{name}.{form}": _pair
        for name, form in (
            *((n, "Tensor") for n in ("add", "mul", "multiply", "rsub", "sub", "subtract")),
            *((n, "default") for n in ("maximum", "minimum", "reshape_as", "type_as", "view_as")),
            *((n, "other") for n in ("max", "min")),
        )
    },
    **{f"{name}.Scalar": lambda op, i: op(i.x, 0.5).float() for name in ("gt", "ge", "lt", "le", "eq", "ne")},
    **{f"{name}.Tensor": lambda op, i: op(i.x, i.y).float() for name in ("gt", "ge", "lt", "le", "ne")},
    **{f"{name}.default": lambda op, i: op(i.unit) for name in ("asin", "acos", "atanh", "tan")},
    **{
        f"{name}.{form}": call
        for name, call in (
            ("_upsample_nearest_exact1d", lambda op, i: op(i.x, [16])),
            ("upsample_nearest1d", lambda op, i: op(i.x, [16])),
            ("_upsample_nearest_exact2d", _image([16, 16])),
            ("upsample_nearest2d", _image([16, 16])),
            ("upsample_linear1d", lambda op, i: op(i.x, [16], False)),
            ("upsample_bilinear2d", _image([16, 16], False)),
            ("_upsample_bilinear2d_aa", _image([5, 9], False)),
            ("_upsample_bicubic2d_aa", _image([5, 9], False)),
        )
        for form in ("default",)
    },
    **{
        f"{name}.vec": call
        for name, call in (
            ("_upsample_nearest_exact1d", lambda op, i: op(i.x, [16], None)),
            ("upsample_nearest1d", lambda op, i: op(i.x, [16], None)),
            ("_upsample_nearest_exact2d", _image([16, 16], None)),
            ("upsample_nearest2d", _image([16, 16], None)),
            ("upsample_linear1d", lambda op, i: op(i.x, [16], False, None)),
            ("upsample_bilinear2d", _image([16, 16], False, None)),
            ("_upsample_bilinear2d_aa", _image([5, 9], False, None)),
            ("_upsample_bicubic2d_aa", _image([5, 9], False, None)),
        )
    },
}


_GIVEN |= {
    **{f"__{name}__.Tensor": _two_truths for name in ("and", "or", "xor")},
    "_adaptive_avg_pool3d.default": _volume([2, 2, 2]),
    "_cdist_forward.default": lambda op, i: op(i.x, i.y, 2.0, None),
    "_euclidean_dist.default": lambda op, i: op(i.matrix, i.other),
    "adaptive_avg_pool3d.default": _volume([2, 2, 2]),
    "addcdiv.default": lambda op, i: op(i.x, i.y, i.large),
    "addcmul.default": lambda op, i: op(i.x, i.y, i.unit),
    "avg_pool3d.default": _volume([2, 2, 2]),
    "bilinear.default": lambda op, i: op(i.matrix, i.other, KERNEL.reshape(8, 8, 9)[..., :8], ROW),
    "cdist.default": _pair,
    "hypot.default": _pair,
    "hypot_.default": lambda op, i: op(i.x + 0.5, i.y),
    "linalg_cross.default": lambda op, i: op(i.x[..., :3], i.y[..., :3]),
    "tensordot.default": lambda op, i: op(i.x, i.y, [2], [2]),
    "clamp.Tensor": lambda op, i: op(i.x, i.y, i.large),
    "col2im.default": lambda op, i: op(i.x, [3, 5], [2, 2], [1, 1], [0, 0], [1, 1]),
    "conv_transpose3d.input": _volume(CUBES, None, [2, 2, 2]),
    "copy.default": _pair,
    "cosine_similarity.default": lambda op, i: op(i.x, i.y, -1),
    "diagonal.default": lambda op, i: op(i.matrix),
    "fill.Scalar": lambda op, i: op(i.x, 0.5) + i.y,
    "fill.Tensor": lambda op, i: op(i.x, torch.tensor(0.5)) + i.y,
    "floor_divide.Scalar": _with(2 / 3),
    "one_hot.default": lambda op, i: op(i.x.argmax(1), 8),
    "remainder.Tensor": lambda op, i: op(i.x, i.large),
    "floor_divide.default": lambda op, i: op(i.x, i.large),
    "full_like.default": lambda op, i: op(i.x, 0.5) + i.y,
    "ger.default": lambda op, i: op(i.matrix[0], i.other[0]),
    "index_copy.default": lambda op, i: op(i.x, 1, PICKS, i.y[:, :3]),
    "index_put.default": lambda op, i: op(i.x, [None, PICKS], i.y[:, :3]),
    "lerp.Scalar": lambda op, i: op(i.x, i.y, 0.3),
    "lerp.Tensor": lambda op, i: op(i.x, i.y, i.unit),
    "logsumexp.default": _with([-1]),
    "max_pool3d.default": _volume([2, 2, 2]),
    "max_pool3d_with_indices.default": lambda op, i: op(i.volume, [2, 2, 2])[0],
    "new_full.default": lambda op, i: op(i.x, [1, 8, 8], 0.5) + i.y,
    "new_ones.default": lambda op, i: op(i.x, [1, 8, 8]) + i.y,
    "new_zeros.default": lambda op, i: torch.cat([op(i.x, [1, 8, 8]), i.y]),
    "ones_like.default": lambda op, i: op(i.x) + i.y,
    "outer.default": lambda op, i: op(i.matrix[0], i.other[0]),
    "pairwise_distance.default": lambda op, i: op(i.matrix, i.other),
    "prod.dim_int": _with(-1),
    "rot90.default": lambda op, i: op(i.x, 1, [1, 2]),
    "select_scatter.default": lambda op, i: op(i.x, i.y[:, 0], 1, 2),
    "slice_scatter.default": lambda op, i: op(i.x, i.y[:, :3], 1, 2, 5),
    "gru_cell.default": lambda op, i: op(i.matrix, i.other, *GRU),
    "lstm_cell.default": lambda op, i: op(i.matrix, [i.other, i.other], *LSTM)[0],
    "rnn_relu_cell.default": lambda op, i: op(i.matrix, i.other, *RNN),
    "rnn_tanh_cell.default": lambda op, i: op(i.matrix, i.other, *RNN),
    "zeros_like.default": lambda op, i: torch.cat([op(i.x), i.y]),
    **{f"any.{form}": _truths(*a) for form, a in (("default", ()), ("dim", (-1,)), ("dims", ([-1],)))},
    **{f"all.{form}": _truths(*a) for form, a in (("default", ()), ("dim", (-1,)), ("dims", ([-1],)))},
    **{f"{name}.Tensor": _two_truths for name in ("bitwise_and", "bitwise_or", "bitwise_xor")},
    **{f"logical_{name}.default": _two_truths for name in ("and", "or", "xor")},
    **{f"{name}_not.default": _truths() for name in ("bitwise", "logical")},
    **{
        f"{name}_mean.{form}": _joined(*arguments)
        for name in ("var", "std")
        for form, arguments in (("default", ()), ("dim", ([-1],)), ("correction", ([-1],)))
    },
    "inner.default": lambda op, i: op(i.matrix, i.other),
    "round.decimals": lambda op, i: op(i.x, decimals=1),
    "upsample_bicubic2d.default": _image([16, 16], False),
    "upsample_bicubic2d.vec": _image([16, 16], False, None),
    "upsample_trilinear3d.default": _volume([8, 12, 12], False),
    "upsample_trilinear3d.vec": _volume([8, 12, 12], False, None),
    **{f"{name}.default": _volume([8, 12, 12]) for name in ("upsample_nearest3d", "_upsample_nearest_exact3d")},
    **{f"{name}.vec": _volume([8, 12, 12], None) for name in ("upsample_nearest3d", "_upsample_nearest_exact3d")},
}


def is_in_place(overload: str) -> bool:
    """Whether an overload changes its operand."""
    name = overload.split(".")[0]
    return name.endswith("_") and not name.startswith("__")


def overloads() -> list[str]:
    """The overloads of the registry that have a row, in order."""
    return sorted(name for name in LOWERINGS if not is_in_place(name))


class Row(torch.nn.Module):
    """The call of one overload."""

    def __init__(self, overload: str) -> None:
        super().__init__()
        packet, form = overload.split(".")
        named = torch.ops.dim_order_ops if "dim_order" in packet else torch.ops.aten
        self.target = getattr(getattr(named, packet), form)
        self.call = _GIVEN.get(overload, lambda op, i: op(i.x))

    def forward(self, inputs: Inputs) -> Any:
        return self.call(self.target, inputs)


class Rows(torch.nn.Module):
    """Many rows as one program; the verdicts of one are those whose module is named like it, see `module_of`."""

    def __init__(self, names: list[str]) -> None:
        super().__init__()
        self.rows = torch.nn.ModuleDict({module_of(name): Row(name) for name in names})
        self.eval()

    def forward(self, x: Tensor, y: Tensor, image: Tensor, volume: Tensor, positions: Tensor) -> list[Any]:
        given = Inputs(x, y, x[0], y[0], image, volume, positions, x.abs() + 0.5, x.abs() + 1.5, x.clamp(-0.9, 0.9))
        return [row(given) for row in self.rows.values()]


def module_of(overload: str) -> str:
    """Name of a row's module in `Rows`."""
    return overload.replace(".", "__")


def batches(count: int = 3) -> list[tuple[Tensor, ...]]:
    """Inputs of `Rows`."""
    random = torch.Generator().manual_seed(7)
    shapes = ((1, 8, 8), (1, 8, 8), (1, 8, 8, 8), (1, 2, 4, 6, 6))
    return [
        (*(torch.randn(s, generator=random) for s in shapes), torch.randint(0, 5, (3, 2), generator=random))
        for _ in range(count)
    ]
