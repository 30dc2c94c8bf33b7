"""Hints for operators that micronpu does not know."""

from __future__ import annotations

import micronpu.ops  # noqa: F401  (fills the registry)
from micronpu.ir.lowering import LOWERINGS, Decomposition

_ADVICE: tuple[tuple[tuple[str, ...], str], ...] = (
    (
        ("argsort", "kthvalue", "median", "mode", "msort", "nonzero", "quantile", "sort", "topk", "unique"),
        "return the scores and choose among them in the application; torch.minimum and torch.maximum sort a few values",
    ),
    (
        ("bucketize", "scatter", "scatter_add", "searchsorted", "take"),
        "look the values up in the application and make them an input; constant indices become slices",
    ),
    (
        ("stft", "istft", "view_as_complex", "view_as_real"),
        "micronpu.audio.LogMel for log-mel features; else products with constant matrices of sines and cosines, or the "
        "spectrum computed in the application",
    ),
    (
        ("max_unpool2d", "max_unpool3d"),
        "a transposed convolution or an interpolation, since no target keeps the positions of the maxima",
    ),
    (("logaddexp",), "torch.maximum(x, y) + F.softplus(-(x - y).abs())"),
    (("atan2", "angle"), "return both operands and compute the angle in the application"),
    (
        ("grid_sampler", "grid_sampler_2d", "grid_sampler_3d", "grid_sample"),
        "x.flatten(2) @ matrix if the sampling points are constant, or F.interpolate; otherwise resample in the "
        "application",
    ),
    (
        ("embedding_bag", "_embedding_bag_forward_only"),
        "nn.Embedding, and the sum or mean of each bag, of a size that is known at export",
    ),
    (("bernoulli", "multinomial", "normal", "rand", "randn", "rand_like", "randn_like"), "make the noise an input"),
)
_GENERAL = "write it with operators of docs/support-table.md, or leave it to the core as it is"


def hint_for(overload: str, general: str = _GENERAL) -> str:
    """Return a hint for an ATen overload that no operator imports: an equivalent replacement, or general advice.

    Args:
        overload: such as ``topk.default``.
        general: the general advice.
    """
    packet = overload.split(".")[0].rstrip("_")
    for names, advice in _ADVICE:
        if packet in names or (packet.startswith(("fft", "_fft")) and "stft" in names):
            return advice
    decomposed = next((w for w in LOWERINGS.get(overload, ()) if isinstance(w, Decomposition)), None)
    if decomposed is not None:
        return f"a call of the form that is written as others: {decomposed.sentence.rstrip('.')}"
    same = sorted(name for name in LOWERINGS if name.split(".")[0] == packet)
    if same:
        return f"{', '.join(f'`{name}`' for name in same)}, if the model can be written with it"
    return general
