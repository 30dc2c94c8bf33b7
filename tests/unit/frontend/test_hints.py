"""What is said about operators that micronpu does not know."""

from __future__ import annotations

import pytest

from micronpu.frontend.checks import _ADVICE, hint_for
from micronpu.ops import ATEN_IMPORTS


@pytest.mark.parametrize(
    ("overload", "words"),
    [
        ("topk.default", "in the application"),
        ("sort.stable", "in the application"),
        ("quantile.default", "in the application"),
        ("logaddexp.default", "F.softplus(-(x - y).abs())"),
        ("atan2.default", "compute the angle in the application"),
        ("grid_sampler_2d.default", "x.flatten(2) @ matrix"),
        ("embedding_bag.padding_idx", "nn.Embedding"),
        ("max_unpool2d.default", "transposed convolution"),
        ("take.default", "make them an input"),
        ("_fft_r2c.default", "sines and cosines"),
        ("randn_like.default", "make the noise an input"),
        ("fake_quantize_per_tensor_affine.tensor_qparams", "the network without it"),
        ("mean.names_dim", "`mean.dim`"),
        ("softmax.Dimname", "`softmax.int`"),
        ("something_entirely_else.default", "support-table.md"),
        ("", "support-table.md"),
        ("einsum.default", "matrix product"),
        ("polygamma.default", "support-table.md"),
        ("lgamma.default", "support-table.md"),
    ],
)
def test_every_unknown_operator_has_a_hint(overload: str, words: str) -> None:
    assert overload not in ATEN_IMPORTS
    assert words in hint_for(overload)


@pytest.mark.parametrize("overload", ["polygamma.default", "lgamma.default", "polar.default", "something_else.default"])
def test_a_similar_name_is_no_hint(overload: str) -> None:
    """A hint names what computes the same, or no operator at all."""
    assert "`" not in hint_for(overload)


def test_a_name_has_one_advice() -> None:
    names = [name for kind, _ in _ADVICE for name in kind]
    assert len(names) == len(set(names))
    assert not set(names) & {overload.removesuffix(".default") for overload in ATEN_IMPORTS}, "these are known by now"
