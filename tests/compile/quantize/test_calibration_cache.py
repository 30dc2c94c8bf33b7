"""Calibration that is kept on disk: the same grids with and without, and no row is run twice."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import micronpu
from micronpu.base.cache import FOLDER
from micronpu.quantize import calibrate
from micronpu.quantize.observing import RangeObserver

ROWS = [(torch.randn(1, 3, 8, 8, generator=torch.Generator().manual_seed(i)),) for i in range(3)]


class Small(nn.Module):
    """Convolutions with a batch norm, a softmax, and two values on one grid."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.first, self.norm = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.second, self.last = nn.Conv2d(8, 8, 3, padding=1), nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(self.norm(self.first(x)))
        return self.last(torch.cat([y, self.second(y)], 1).mean((2, 3))[:, :8]).softmax(-1)


class Masked(Small):
    """A maximum of values and of a constant far below them."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.second(torch.relu(self.first(x)))
        return self.last(torch.cat([y, torch.full_like(y, -100.0)], 2).amax((2, 3))).softmax(-1)


def quantized(rows: Any = ROWS, seed: int = 0, kind: type[Small] = Small, **how: Any) -> str:
    """The quantized program as text, with every grid and a sum of every tensor."""
    program = micronpu.compile(
        kind(seed).eval(), rows[0], target="imxrt700-neutron", calibration=rows, quantization=how or None, verify=False
    )
    module = program.quantized
    sums = [(name, float(t.double().sum())) for name, t in sorted(module.state_dict().items())]
    return f"{module.graph}{sums}"


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """One more for each row that is run for calibration."""
    monkeypatch.setenv(FOLDER, str(tmp_path / "answers"))
    made: list[int] = []
    real = calibrate.run_call

    def counted(number: int, step: Any) -> Any:
        made.append(1)
        return real(number, step)

    monkeypatch.setattr(calibrate, "run_call", counted)
    return made


@pytest.mark.sweep
@pytest.mark.parametrize(
    "how",
    [
        {},
        {"default": {"activation_observer": "mse", "weight_observer": "mse"}},
        {"default": {"activation_observer": "moving_average"}, "equalize": True},
        {"default": {"activation_observer": "mse"}, "kind": Masked},
    ],
)
def test_the_second_time_runs_no_row_and_finds_the_same_qparams(runs: list[int], how: dict[str, Any]) -> None:
    with micronpu.no_cache():
        without = quantized(**how)
    assert len(runs) == 3
    assert quantized(**how) == without
    assert len(runs) == 6
    assert quantized(**how) == without
    assert len(runs) == 6


def test_ranges_of_few_values_keep_their_margin(runs: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [(torch.randn(1, 3, 8, 8, generator=torch.Generator().manual_seed(i)),) for i in range(9)]
    first = quantized(rows)
    done = len(runs)
    assert quantized(rows) == first
    assert len(runs) == done
    monkeypatch.setattr(RangeObserver, "widens", False)
    with micronpu.no_cache():
        assert quantized(rows) != first, "the last layers have few values"


def test_what_differs_is_calibrated_anew(runs: list[int]) -> None:
    first = quantized()
    others = [
        quantized(rows=ROWS[:2]),
        quantized(rows=ROWS[::-1]),
        quantized(seed=1),
        quantized(default={"activation_observer": "mse"}),
    ]
    assert len(runs) == 3 + 2 + 3 + 3 + 3
    assert first not in (others[0], *others[2:])
    with micronpu.no_cache():
        wanted = [
            quantized(rows=ROWS[:2]),
            quantized(rows=ROWS[::-1]),
            quantized(seed=1),
            quantized(default={"activation_observer": "mse"}),
        ]
    assert others == wanted


def test_an_operator_of_the_users_own_is_not_kept(runs: list[int]) -> None:
    """Nobody can say what its code was when the answer was found."""

    @torch.library.custom_op("keepers::twice", mutates_args=())
    def twice(x: torch.Tensor) -> torch.Tensor:
        return 2 * x

    twice.register_fake(torch.empty_like)

    class Own(Small):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(twice(x))

    for _ in range(2):
        micronpu.check(Own().eval(), ROWS[0], target="imxrt700-neutron", calibration=ROWS)
    assert len(runs) == 6
