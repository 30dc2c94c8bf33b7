"""Whatever hands a grid on, and whatever reads it: no pair is far from float without int8 itself being the reason."""

from __future__ import annotations

import gc
import itertools
from collections.abc import Iterator

import pytest
import torch
from tests.compile.nearness import BACKENDS
from tests.compile.quantize.chains import TARGETS, Chain, Far, Refused, Whole, judged, quantized, rows, stitched
from tests.compile.quantize.joins import TARGETS as TARGETS_OF_JOINS
from tests.compile.quantize.joins import wrong
from tests.compile.quantize.pairs import AT_ONCE, Pair, far, handing_on, pairs, reading, sample, triples

from micronpu.frontend.exported import exported

INEXACT = {
    "prod.default": "a product of 64 numbers, of whose partial products int8 keeps those near the largest",
}
"""Why some readers of the quantized modules may be further off than the plain reference."""
JUMPS = {
    "fmod.Scalar": "a step moves a quotient to the other side of a whole number",
    "remainder.Scalar": "as fmod",
    "frac.default": "as fmod",
    "ceil.default": "as fmod",
    "cumprod.default": "products of eight factors, each step of which is a rounding",
    "cross.default": "differences of products that cancel out",
}
"""Why some readers of finished programs may be further off than the plain reference, which rounds at other places."""
BETWEEN = (
    *("avg_pool2d.default", "_adaptive_avg_pool2d.default"),
    *("upsample_bilinear2d.default", "upsample_bilinear2d.vec"),
)
AT_NUMBERS = ("__and__.Tensor", "ceil.default", "sgn.default", "trunc.default")
"""The first round to the steps of their operand, as the chips do; what lies within half of one of a number at which the
second jump is then on the other side."""
STATED: dict[Chain, str] = {
    **dict.fromkeys(itertools.product(BETWEEN, AT_NUMBERS), "rounded next to a number at which the reader jumps"),
    ("convolution.default", "__and__.Tensor"): "compares with 0: as far with float arithmetic on the input in int8",
    ("clamp.default", "hardshrink.default"): "bound and threshold are one number, where no table tells them equal",
    ("mean.default", "cosine_similarity.default"): "rows of one number, whose square is below a step where it is small",
    ("sum.default", "cosine_similarity.default"): "as of means",
    ("remainder.Tensor", "one_hot.default"): "reads what has jumped",
    ("eq.Scalar", "subtract.Tensor"): "in the sample 0.4983 is compared with 0.5, which is the same step of int8",
}
"""Why some pairs may be."""


def test_the_lists_hold_what_the_declarations_say() -> None:
    assert {"mean.default", "eq.Tensor", "sigmoid.default", "adjoint.default"} <= set(handing_on())
    assert {"stack.default", "cosh.default", "bilinear.default", "mean.default"} <= set(reading())
    assert len(pairs()) == len(handing_on()) * len(reading())


@pytest.fixture(autouse=True)
def _less_garbage() -> Iterator[None]:
    before = gc.get_threshold()
    gc.set_threshold(100_000, 50, 100)
    yield
    gc.set_threshold(*before)


@pytest.mark.sweep
def test_a_chain_of_parts_is_as_if_it_were_exported_as_a_whole() -> None:
    for chain in [("sum.default", "cumprod.default"), ("softmax.int", "where.self"), ("roll.default", "gru.input")]:
        given, inputs = stitched(chain)
        whole = exported(Whole(chain), rows()[0])
        assert torch.equal(quantized(given, inputs, TARGETS[1])[0][0], quantized(whole, rows(), TARGETS[1])[0][0])


# ---------------------------------------------------------------- as the quantizers make them


def check_quantized(chosen: list[Chain]) -> None:
    found = [each for each in map(judged, chosen) if each is not None]
    wrong = [
        str(f) for f in found if isinstance(f, Refused) or (isinstance(f, Far) and f.wrong and not reason(f.chain))
    ]
    assert not wrong, wrong


def reason(chain: Chain) -> str:
    """Why a chain may be further off than the plain reference; "" where there is no reason."""
    return INEXACT.get(chain[-1], "") or STATED.get(chain[-2:], "")


@pytest.mark.sweep
def test_some_quantized() -> None:
    check_quantized([*sample(30), *triples(6)])


@pytest.mark.slow
@pytest.mark.parametrize("group", range(16))
def test_all_quantized(group: int) -> None:
    """Every pair on every family."""
    givers = handing_on()[group::16]
    check_quantized([(first, second) for first in givers for second in reading()])


@pytest.mark.slow
@pytest.mark.parametrize("group", range(8))
def test_triples_quantized(group: int) -> None:
    check_quantized(triples(250, seed=1 + group))


@pytest.mark.sweep
@pytest.mark.parametrize("target", TARGETS_OF_JOINS)
def test_some_joins(target: str) -> None:
    assert not [said for seed in range(8) for said in wrong(seed, target)]


@pytest.mark.slow
@pytest.mark.parametrize("group", range(6))
@pytest.mark.parametrize("target", TARGETS_OF_JOINS)
def test_more_joins(target: str, group: int) -> None:
    assert not [said for seed in range(50 * group, 50 * (group + 1)) for said in wrong(100 + seed, target)]


# ---------------------------------------------------------------- as finished programs


def check(chosen: list[Pair], target: str) -> None:
    wrong = [
        found
        for found in far(chosen, target)
        if found.is_wrong and found.pair[1] not in JUMPS and found.pair not in STATED
    ]
    assert not wrong, wrong


@pytest.mark.sweep
@pytest.mark.parametrize("target", BACKENDS)
def test_some_pairs(target: str) -> None:
    check(sample(AT_ONCE), target)


@pytest.mark.slow
@pytest.mark.parametrize("group", range(10))
@pytest.mark.parametrize("target", BACKENDS)
def test_more_pairs(target: str, group: int) -> None:
    """120 on each family."""
    check(sample(10 * AT_ONCE, seed=1)[group * AT_ONCE :][:AT_ONCE], target)
