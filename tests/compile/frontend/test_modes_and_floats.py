"""Autocast, gradient modes and checkpoints are inlined, and every float dtype is computed as float32."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import micronpu
from micronpu.frontend.exported import exported, exported_for_any_batch
from micronpu.frontend.facts import CONVERTED


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.norm, self.linear = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        features = torch.relu(self.norm(self.conv(x))).mean((2, 3))
        return self.linear(features.to(self.linear.weight.dtype))


class CudaAutocast(Net):
    @torch.autocast("cuda", enabled=False)
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x)


class NestedModes(Net):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        with torch.enable_grad():
            first, second = self.conv(x).chunk(2, 1)
            with torch.no_grad():
                first = first * 2
            return torch.relu(first), second


class WritesInAutocast(Net):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = self.norm(self.conv(x))
            with torch.enable_grad():
                y[:, 0] += 1
        return y, self.linear(y.float().mean((2, 3)))


class Checkpointed(Net):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return checkpoint(super().forward, x, use_reentrant=False)


class Casts(Net):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.conv(x).double()).sum((2, 3), dtype=torch.float64).half()


class Negated(nn.Module):
    """Views that hold the opposite of what is in memory, as the imaginary part of a conjugate is."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("factor", torch.complex(torch.ones(4), torch.arange(1.0, 5.0)).conj().imag)
        self.weight = nn.Parameter(torch._neg_view(torch.ones(4)), requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch._neg_view(x) * self.factor + self.weight


def results(module: nn.Module, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
    with torch.no_grad():
        result = module(*inputs)
    return tuple(result) if isinstance(result, (tuple, list)) else (result,)


@pytest.mark.sweep
@pytest.mark.filterwarnings("ignore:.*CUDA")
@pytest.mark.parametrize("through_export", [False, True])
@pytest.mark.parametrize(
    ("model", "dtype", "tolerance", "converted"),
    [
        (CudaAutocast(), torch.float32, 0.0, ()),
        (NestedModes(), torch.float32, 0.0, ()),
        (Checkpointed(), torch.float32, 0.0, ()),
        (WritesInAutocast(), torch.float32, 0.03, ("bfloat16",)),
        (Casts(), torch.float32, 0.03, ("float16", "float64")),
        (Net(), torch.float16, 1e-3, ("float16",)),
        (Net(), torch.bfloat16, 1e-2, ("bfloat16",)),
        (Net(), torch.float64, 1e-6, ("float64",)),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, nn.Module) else str(value),
)
def test_the_graph_is_plain_float32(model, dtype, tolerance, converted, through_export):
    model = type(model)().to(dtype).eval()
    x = torch.randn(1, 3, 12, 12, generator=torch.Generator().manual_seed(0)).to(dtype)
    given = exported(torch.export.export(model, (x,)) if through_export else model, x)
    names = [getattr(node.target, "namespace", "") for node in given.module.graph.nodes]
    assert "higher_order" not in names
    assert CONVERTED.of(given.module) == converted
    found, wanted = results(given.module, *given.examples), results(model, x)
    assert [y.dtype for y in found] == [torch.float32] * len(wanted)
    values = [node.meta["val"] for node in given.module.graph.nodes if isinstance(node.meta.get("val"), torch.Tensor)]
    assert {value.dtype for value in values if value.is_floating_point()} == {torch.float32}
    for y, z in zip(found, wanted, strict=True):
        torch.testing.assert_close(y, z.float(), rtol=0, atol=tolerance)
    assert next(model.parameters()).dtype is dtype  # the user's model stays as it is


def test_export_for_any_batch_converts_too():
    model = Net().half().eval()
    module = exported_for_any_batch(model, (torch.randn(1, 3, 12, 12),))
    assert results(module, torch.randn(3, 3, 12, 12))[0].shape == (3, 4)


def test_a_model_in_float64_compiles_to_the_program_of_float32():
    rows = [torch.randn(1, 3, 8, 8, generator=torch.Generator().manual_seed(i)) for i in range(8)]
    model = Net().eval()
    plain = micronpu.compile(model, rows[0], "ethos-u55-128", calibration=rows)
    again = micronpu.compile(
        Net().double().eval(), rows[0].double(), "ethos-u55-128", calibration=[row.double() for row in rows]
    )
    assert again.report.delegated == again.report.operators > 0
    assert torch.equal(plain.run(rows[1]), again.run(rows[1]))
    assert [note for note in again.report.notes if "float64 is computed as float32" in note]


def test_an_input_with_the_name_of_a_function_of_python():
    """Copies of a graph call `input`, as layers of torch name theirs, `input_1`."""
    program = exported(nn.Linear(8, 4).double().eval(), torch.randn(1, 8, dtype=torch.double))
    assert program.examples[0].dtype is torch.float32


@pytest.mark.parametrize("target", ["ethos-u55-128", "imxrt700", "cortex-m55"])
def test_negated_views_are_read_by_their_values(target):
    model, rows = Negated().eval(), [torch._neg_view(torch.rand(1, 4)) for _ in range(8)]
    assert model.factor.is_neg() and rows[0].is_neg()
    program = micronpu.compile(model, rows[0], target, calibration=rows)
    torch.testing.assert_close(program.run(rows[1]), model(rows[1]), rtol=0, atol=0.05)
    torch.testing.assert_close(program.run(rows[1].resolve_neg()), model(rows[1]), rtol=0, atol=0.05)
    assert model.factor.is_neg()  # the user's model stays as it is
