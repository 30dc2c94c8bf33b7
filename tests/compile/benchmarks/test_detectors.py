"""Detectors as they are exported: the network whole on the NPU, what it gives on grids that the application knows."""

from __future__ import annotations

import pytest
import torch
from benchmarks.coverage import decisions
from benchmarks.networks.detectors import DistributionHead, Fomo, SsdLite, Yolo

import micronpu
from micronpu.compiler.compile import check_model

TARGETS = ("imxrt700-neutron", "ethos-u55-128")


@pytest.mark.sweep
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("make", [Fomo, SsdLite, pytest.param(Yolo, marks=pytest.mark.slow)])
def test_a_detector_is_one_partition(make, target: str):
    torch.manual_seed(0)
    made = check_model(make().eval(), (torch.randn(1, 3, 64, 64),), target)
    assert not made.report.host and made.report.partitions == 1


def test_integers_of_a_detector():
    """With integers at its borders nothing is left on the host, and the grids of both results are known."""
    torch.manual_seed(0)
    model, x = SsdLite().eval(), (torch.randn(1, 3, 64, 64),)
    program = micronpu.compile(
        model, x, "imxrt700-neutron", calibration=[x], quantization=micronpu.Quantization(io="int8")
    )
    assert not program.report.host and program.integer_io is not None
    boxes, scores = program.integer_io.outputs
    assert scores is not None and (scores.scale, scores.zero_point) == (1 / 256, -128) and boxes is not None
    with torch.no_grad():
        wanted = model(*x)
    got = program.integer_io.dequantize(program.run(*program.integer_io.quantize(x)))
    for result, real, border in zip(got, wanted, (boxes, scores), strict=True):
        assert result.shape == real.shape
        assert float((result - real).abs().mean()) < 4 * border.scale


def test_distances_are_means_of_distributions():
    head = DistributionHead(8, 2).eval()
    torch.nn.init.zeros_(head.boxes[1].weight)
    torch.nn.init.zeros_(head.boxes[1].bias)
    boxes, scores = head(torch.randn(1, 8, 3, 4))
    assert boxes.shape == (1, 4, 12) and scores.shape == (1, 2, 12)
    assert torch.allclose(boxes, torch.full_like(boxes, 7.5))  # 16 equal steps


def test_rows_of_the_table(capsys):
    (row,) = decisions(["own:dynamic_choice"], TARGETS, 0)
    assert row["inputs"] == [[1, 1, 28, 28]] and row["operators"] > 5
    assert {t: (r["partitions"], r["host"]) for t, r in row["targets"].items()} == dict.fromkeys(TARGETS, (1, {}))
    assert "host nothing" in capsys.readouterr().out
