"""Calibration data that come one by one: what is kept of them, and where they end."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import nn

from micronpu.base.errors import ModelError
from micronpu.quantize import float64, thresholds
from micronpu.quantize.data import calibration_batches
from micronpu.quantize.float64 import in_float64
from micronpu.verify.static_checks import _moments

EXAMPLE = (torch.zeros(1, 256),)
ROWS = [(torch.full((1, 256), float(i)),) for i in range(1000)]


def test_a_list_is_kept_as_it_is() -> None:
    found = calibration_batches(ROWS, EXAMPLE)
    assert len(found) == 1000 and all(y.data_ptr() == x.data_ptr() for (y,), (x,) in zip(found, ROWS, strict=True))


def test_a_short_generator_is_kept_whole() -> None:
    found = calibration_batches(iter(ROWS), EXAMPLE)
    assert [float(x[0, 0]) for (x,) in found] == [*range(1000)]


@pytest.mark.parametrize("together", [1, 8])
def test_a_long_generator_is_thinned_evenly(together: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(thresholds, "STREAM_BYTES", 100 * 1024)  # a hundred rows
    items = (torch.cat([x for (x,) in ROWS[i : i + together]]) for i in range(0, 1000, together))
    found = [float(x[0, 0]) for (x,) in calibration_batches(items, EXAMPLE)]
    assert found == [*range(0, 1000, 16)]
    assert len(found) * 1024 <= thresholds.STREAM_BYTES


def test_rows_that_are_kept_do_not_keep_their_batch() -> None:
    found = calibration_batches(iter([torch.zeros(512, 256)]), EXAMPLE)
    assert all(x.untyped_storage().nbytes() == 1024 for (x,) in found)


def test_few_large_rows_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(thresholds, "STREAM_BYTES", 1024)
    assert len(calibration_batches(iter(ROWS[:16]), EXAMPLE)) == 16


def test_an_endless_generator_ends_in_a_message(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(thresholds, "MOST_ITEMS", 50)
    with pytest.raises(ModelError, match=r"generator of more than 50 items; it may not end.*islice"):
        calibration_batches(itertools.repeat(ROWS[0]), EXAMPLE)
    assert len(calibration_batches(iter(ROWS[:50]), EXAMPLE)) == 50
    assert len(calibration_batches(ROWS, EXAMPLE)) == 1000  # a list ends


@pytest.mark.parametrize("axis", [1, 2])
def test_moments_are_those_of_all_rows(axis: int) -> None:
    values = [torch.randn(2, 3, 4) * 5 + 100 for _ in range(20)]
    whole = torch.cat([v.double().movedim(axis, 0).flatten(1) for v in values], 1)
    for found, wanted in zip(_moments(values, axis), torch.std_mean(whole, 1), strict=True):
        assert torch.allclose(found, wanted, rtol=1e-12)


@pytest.mark.parametrize(("layer", "shape"), [(nn.ConvTranspose2d, (3, 7, 5, 6)), (nn.ConvTranspose1d, (3, 7, 6))])
def test_large_transposed_convolutions_are_computed_in_pieces(
    layer: type[nn.Module], shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = layer(7, 9, 3, stride=2, padding=1, output_padding=1).eval()
    x = torch.randn(shape)
    module = in_float64(torch.export.export(model, (x,)).module())
    wanted = module(x)
    monkeypatch.setattr(float64, "COLUMN_BYTES", 0)
    assert torch.allclose(module(x), wanted, rtol=1e-12, atol=1e-12)
    assert torch.allclose(wanted.float(), model(x), atol=1e-5)
