"""Room in the ranges of distances, whose threshold is beyond calibration."""

from collections.abc import Callable

import pytest
import torch
from torch import nn

import micronpu

ROOM = "is a distance of an input, as of an autoencoder: its range and those before it are 2 times"


class Distance(nn.Module):
    """The distance of a row to an autoencoder's."""

    def __init__(self, distance: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(32, 8), nn.ReLU(), nn.Linear(8, 32))
        self.distance = distance

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.distance(self.net(x), x)


def healthy() -> list[torch.Tensor]:
    return list(0.3 * torch.randn(48, 1, 32, generator=torch.Generator().manual_seed(1)))


def compiled(model: nn.Module, **options: object) -> micronpu.CompiledProgram:
    rows = healthy()
    return micronpu.compile(model.eval(), rows[0], "ethos-u55-128", calibration=rows, **options)  # type: ignore[arg-type]


def has_note(program: micronpu.CompiledProgram) -> bool:
    return any(ROOM in note for note in program.report.notes)


@pytest.mark.parametrize(
    "distance",
    [
        lambda y, x: ((y - x) ** 2).mean(1),
        lambda y, x: (y - x).abs().amax(1, keepdim=True),
        lambda y, x: ((y - x) ** 2).sum(1).sqrt(),
    ],
    ids=("mean of squares", "largest", "norm"),
)
def test_faults_exceed_what_healthy_rows_reach(distance: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> None:
    program, rows = compiled(Distance(distance)), healthy()
    faults = [x.clone() for x in rows[:8]]
    for n, fault in enumerate(faults):
        fault[0, [n, n + 9, n + 20]] += 4.0
    most = max(float(program.run(x)) for x in rows)  # type: ignore[arg-type]
    assert min(float(program.run(x)) for x in faults) > 1.15 * most  # type: ignore[arg-type]
    assert has_note(program)


@pytest.mark.parametrize(
    "distance",
    [lambda y, x: y, lambda y, x: y[:, :1].relu(), lambda y, x: (y**2).mean(1), lambda y, x: (y - x).sigmoid().mean(1)],
    ids=("scores", "one score", "embedding", "probability"),
)
def test_other_results_have_no_room(distance: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> None:
    assert not has_note(compiled(Distance(distance)))


def test_a_selected_range_has_no_room() -> None:
    averages = "moving_average"
    quantization = {"default": {"activation_observer": averages, "input_observer": averages}}
    assert not has_note(compiled(Distance(lambda y, x: ((y - x) ** 2).amax(1)), quantization=quantization))
