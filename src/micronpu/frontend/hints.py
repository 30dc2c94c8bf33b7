"""What to try where an operator of the program is none that micronpu knows."""

from __future__ import annotations

import difflib

from micronpu.ops import ATEN_IMPORTS

_ADVICE: tuple[tuple[tuple[str, ...], str], ...] = (
    (
        ("argsort", "kthvalue", "median", "mode", "msort", "nonzero", "sort", "topk", "unique"),
        "return the scores and choose among them in the application",
    ),
    (
        ("bucketize", "gather", "index_put", "scatter", "scatter_add", "searchsorted", "take"),
        "look the values up in the application and make them an input; constant indices become slices",
    ),
    (
        ("stft", "istft", "view_as_complex", "view_as_real"),
        "products with constant matrices of sines and cosines, or compute the spectrum in the application",
    ),
    (("bernoulli", "multinomial", "normal", "rand", "randn", "rand_like", "randn_like"), "make the noise an input"),
)


def hint_for(overload: str) -> str:
    """A sentence for an ATen overload such as ``topk.default``: advice about its kind, or the nearest known names."""
    packet = overload.split(".")[0].rstrip("_")
    for names, advice in _ADVICE:
        if packet in names or (packet.startswith(("fft", "_fft")) and "stft" in names):
            return advice
    same = sorted(name for name in ATEN_IMPORTS if name.split(".")[0].rstrip("_") == packet)
    close = same or difflib.get_close_matches(overload, sorted(ATEN_IMPORTS), 3, 0.7)
    if close:
        return f"{', '.join(f'`{name}`' for name in close)}, if the model can be written with it"
    return "write it with operators of docs/support-table.md, or leave it to the core as it is"
