"""Names of ATen operators, in every common spelling."""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterable

from micronpu.base.errors import OptionError
from micronpu.ir.lowering import LOWERINGS

CORE: dict[str, tuple[str, ...]] = {
    "_adaptive_avg_pool2d": ("adaptive_avg_pool1d", "adaptive_avg_pool2d"),
    "_log_softmax": ("log_softmax",),
    "_native_batch_norm_legit_no_training": ("batch_norm",),
    "_softmax": ("softmax",),
    "addmm": ("linear",),
    "bmm": ("matmul",),
    "cat": ("concat", "concatenate", "stack", "hstack", "vstack"),
    "constant_pad_nd": ("pad",),
    "convolution": ("conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d"),
    "hardtanh": ("relu6",),
    "max_pool2d_with_indices": ("max_pool1d", "max_pool2d"),
    "mean": ("adaptive_avg_pool1d", "adaptive_avg_pool2d"),
    "mm": ("linear", "matmul"),
    "native_group_norm": ("group_norm",),
    "native_layer_norm": ("layer_norm",),
    "permute_copy": ("permute", "transpose", "t", "movedim", "swapaxes"),
    "slice_copy": ("slice", "narrow", "split", "chunk"),
    "view_copy": ("view", "reshape", "_reshape_copy", "flatten", "unflatten"),
}
"""Operators that users write, by the name that ExecuTorch's decompositions give them."""

_OVERLOADS = ("default", "dim", "Tensor")


def _packet(name: str) -> str:
    """The operator's name without overload and without suffixes that only describe how the result is stored."""
    packet = name.split(".")[0]
    return packet.rstrip("_").removesuffix("_copy") if packet not in CORE else packet


def keys_of(overload: str) -> set[str]:
    """Every name that matches an overload such as ``conv2d.default``."""
    packet, _, name = overload.partition(".")
    plain = _packet(packet)
    keys = {packet, plain, f"{packet}.{name}", f"{plain}.{name}"}
    cores = [core for core, written in CORE.items() if plain in written or packet in written]
    return keys.union(*({core, *(f"{core}.{kind}" for kind in _OVERLOADS)} for core in cores))


@functools.lru_cache(maxsize=1)
def _by_spelling() -> dict[str, str]:
    """Overload or packet by its spellings, without "aten"."""
    found: dict[str, str] = {}
    for overload in LOWERINGS:
        packet, _, name = overload.partition(".")
        for key in sorted(keys_of(overload)):
            found.setdefault(key, key)
        found.setdefault(f"{packet}_{name}", overload)
    for core in CORE:
        for kind in _OVERLOADS:
            found.setdefault(f"{core}_{kind}", f"{core}.{kind}")
            found.setdefault(f"{core}.{kind}", f"{core}.{kind}")
        found.setdefault(core, core)
    return found


def operator_name(given: str, where: str) -> str:
    """``add.Tensor``, or ``add`` for all overloads, from any common spelling: "aten::add", "aten_add_Tensor".

    Args:
        where: the option that the name is given for, used in the error.

    Raises:
        OptionError: there is no such operator.
    """
    bare = given.replace("::", ".").removeprefix("torch.ops.").removeprefix("exir_ops.edge.")
    bare = bare.removeprefix("aten.").removeprefix("aten_")
    known = _by_spelling()
    if bare in known:
        return known[bare]
    for spelling, name in known.items():  # names of nodes are in lower case
        if spelling.lower() == bare:
            return name
    close = [o for o in sorted(LOWERINGS) if o.split(".")[0] == bare.split(".")[0]]
    hint = (
        f"one of {', '.join(f'aten.{o}' for o in close)}" if close else "`micronpu check` prints the names in a model"
    )
    raise OptionError(f"There is no operator {given!r} in `{where}`.", hint=hint)


def named(overloads: Iterable[str], names: Collection[str]) -> str | None:
    """Return the entry of ``names``, as `operator_name` returns them, that matches an overload; None if none does."""
    keys = {key for overload in overloads for key in keys_of(overload)}
    return next((name for name in names if name in keys), None)
