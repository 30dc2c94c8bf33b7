"""Control flow of one level passes, and what no runtime has is a sentence before anything is computed."""

from __future__ import annotations

import pytest
import torch
from executorch.exir import to_edge_transform_and_lower
from torch import nn

import micronpu
from micronpu.base.errors import ModelError, OptionError
from micronpu.ethosu import EthosUOptions, EthosUPartitioner, EthosUQuantizer
from micronpu.frontend.checks import check_control_flow
from micronpu.frontend.export import check_static
from micronpu.frontend.exported import exported
from micronpu.frontend.facts import WRITTEN_OUT


class Branches(nn.Module):
    def __init__(self, levels: int) -> None:
        super().__init__()
        self.levels = levels

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        def branch(level: int, x: torch.Tensor) -> torch.Tensor:
            if not level:
                return x + 1
            return torch.cond(x.sum() > level, lambda x: branch(level - 1, x), lambda x: x * 2, (x,))

        return branch(self.levels, x)


class Loop(nn.Module):
    """A convolution again and again: a number of times, or until the sum is small, or both."""

    def __init__(self, most: int | None = 3, least: float | None = None) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv = nn.Conv2d(3, 3, 3, padding=1)
        self.most, self.least = most, least

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        def goes_on(i: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
            bounded = None if self.most is None else i < self.most
            if self.least is None:
                return bounded
            large = x.abs().mean() > self.least
            return large if bounded is None else torch.logical_and(large, bounded)

        def step(i: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return i + 1, torch.relu(self.conv(x))

        i, x = torch._higher_order_ops.while_loop(goes_on, step, (torch.zeros((), dtype=torch.int64), x))
        return x, i


def module_of(model: nn.Module) -> torch.fx.GraphModule:
    return torch.export.export(model.eval(), (torch.randn(2, 3),)).module()


def test_one_level_passes():
    check_control_flow(module_of(Branches(0)))
    check_control_flow(module_of(Branches(1)))


@pytest.mark.parametrize("levels", [2, 3])
def test_control_flow_inside_of_control_flow(levels):
    with pytest.raises(ModelError, match=r"^The model has `cond` inside of `cond` \(`cond\w*`\); .* Try: "):
        check_static(module_of(Branches(levels)))


@pytest.mark.sweep
@pytest.mark.parametrize("loop", [Loop(None, 0.2), Loop(65), Loop(10**9)], ids=["data", "65 steps", "many"])
def test_a_loop_that_nothing_bounds(loop):
    with pytest.raises(ModelError, match=r"^The model has the control flow `while_loop` .* Try: .*`i < 8`"):
        exported(loop.eval(), SHADES[0])


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("loop", "steps", "ends_early"),
    [(Loop(3), 3, False), (Loop(64), 64, False), (Loop(0), 0, False), (Loop(5, 0.25), 5, True)],
    ids=["three", "the most", "none", "data"],
)
def test_a_loop_is_written_out(loop, steps, ends_early):
    """The same floats as the loop gives, however many steps an input takes."""
    loop = loop.eval()
    given = exported(loop, SHADES[0])
    assert not [n for n in given.module.graph.nodes if "while_loop" in str(n.target)]
    assert sum(n.target is torch.ops.aten.conv2d.default for n in given.module.graph.nodes) == steps
    assert [row[1:] for row in WRITTEN_OUT.of(given.module)] == [(steps, ends_early)]
    taken = set()
    with torch.no_grad():
        for x in [*SHADES, *(8 * x for x in SHADES), *(0.1 * x for x in SHADES)]:
            for own, expected in zip(given.module(x), loop(x), strict=True):
                torch.testing.assert_close(own, expected, rtol=0, atol=0)
            taken.add(int(expected))
    assert len(taken) > 2 if ends_early else taken == {steps}


class Counted(nn.Module):
    """A loop that ends at a number which the model keeps, and may write."""

    most: torch.Tensor

    def __init__(self, writes: bool) -> None:
        super().__init__()
        self.register_buffer("most", torch.tensor(2))
        self.writes = writes

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        start = (torch.zeros((), dtype=torch.int64), x, self.most.clone())
        x = torch._higher_order_ops.while_loop(lambda i, x, n: i < n, lambda i, x, n: (i + 1, x * 2, n + 0), start)[1]
        if self.writes:
            self.most.add_(1)
        return x


def test_a_bound_that_the_model_keeps():
    """A constant bounds a loop; a state does not, and neither does what another method writes."""
    x = torch.ones(2, 3)
    assert WRITTEN_OUT.of(exported(Counted(False).eval(), x).module)[0][1:] == (2, False)
    for writes, also in ((True, ()), (False, ("most",))):
        with pytest.raises(ModelError, match="the control flow `while_loop`"):
            exported(Counted(writes).eval(), x, also)


@pytest.mark.sweep
@pytest.mark.parametrize("target", ["ethos-u55-128", "imxrt700"])
def test_a_loop_runs_on_the_npu(target):
    loop = Loop(4, 0.25).eval()
    rows = [scale * x for x in SHADES for scale in (1, 2)]
    program = micronpu.compile(loop, SHADES[0], target, calibration=rows)
    on_npu = [v.operator for v in program.report.verdicts if v.delegated]
    assert on_npu.count("conv2d.default") == 4
    assert any(note.startswith("`while_loop`: its 4 steps are written out") for note in program.report.notes)
    with torch.no_grad():
        for x in rows:
            own, expected = program.run(x)[0], loop(x)[0]
            torch.testing.assert_close(own, expected, rtol=0, atol=0.1 * float(expected.abs().max()) + 0.1)


class Either(nn.Module):
    """Two convolutions, of which the picture's mean chooses one; the second result is the same in both branches."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.dark, self.light = nn.Conv2d(3, 4, 3), nn.Conv2d(3, 4, 3)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        def light(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return torch.relu(self.light(x)).contiguous(), x * 2

        def dark(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return torch.tanh(self.dark(x)).contiguous(), x + 1

        return torch.cond(x.mean() > 0, light, dark, (x,))


SHADES = [torch.randn(1, 3, 6, 6, generator=torch.Generator().manual_seed(i)) + (-1) ** i for i in range(4)]


def test_both_branches_mean_what_the_chosen_one_means():
    model = Either().eval()
    given = exported(model, SHADES[0])
    assert not [n for n in given.module.graph.nodes if "cond" in str(n.target)]
    with torch.no_grad():
        for x in SHADES:
            for own, expected in zip(given.module(x), model(x), strict=True):
                torch.testing.assert_close(own, expected, rtol=0, atol=0)


@pytest.mark.sweep
@pytest.mark.parametrize("target", ["ethos-u55-128", "imxrt700"])
def test_branches_run_on_the_npu(target):
    model = Either().eval()
    program = micronpu.compile(model, SHADES[0], target, calibration=SHADES)
    on_npu = {v.operator for v in program.report.verdicts if v.delegated}
    assert {"conv2d.default", "relu.default", "tanh.default"} <= on_npu
    assert any(note.startswith("`cond`: both branches are computed") for note in program.report.notes)
    with torch.no_grad():
        for x in SHADES:
            for own, expected in zip(program.run(x), model(x), strict=True):
                torch.testing.assert_close(own, expected, rtol=0, atol=0.02 * float(expected.abs().max()) + 0.02)


def test_a_loop_in_executorchs_flow():
    spec = EthosUOptions("ethos-u55-128")
    module = torch.export.export(Loop(2).eval(), (SHADES[0],), strict=True).module(check_guards=False)
    quantized = EthosUQuantizer(spec).quantize_with_submodules(module, [(x,) for x in SHADES])
    partitioner = EthosUPartitioner(spec)
    to_edge_transform_and_lower(torch.export.export(quantized, (SHADES[0],)), partitioner=[partitioner])
    assert [v.operator for v in partitioner.report.verdicts if v.delegated].count("conv2d.default") == 2


@pytest.mark.sweep
def test_branches_in_executorchs_flow():
    spec = EthosUOptions("ethos-u55-128")
    module = torch.export.export(Either().eval(), (SHADES[0],), strict=True).module(check_guards=False)
    quantized = EthosUQuantizer(spec).quantize_with_submodules(module, [(x,) for x in SHADES])
    partitioner = EthosUPartitioner(spec)
    edge = to_edge_transform_and_lower(torch.export.export(quantized, (SHADES[0],)), partitioner=[partitioner])
    assert "executorch_call_delegate" in str(edge.exported_program().graph)
    assert {"conv2d.default", "tanh.default"} <= {v.operator for v in partitioner.report.verdicts if v.delegated}
    for wrong in ({"calibration_samples": []}, {"calibration_samples": [SHADES[0]]}, {"is_qat": True}, {"model": 3}):
        with pytest.raises(OptionError):
            EthosUQuantizer(spec).quantize_with_submodules(
                **{"model": module, "calibration_samples": [(SHADES[0],)]} | wrong
            )


def _brightened(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    y[:, :4] += 3
    return y


class WritesInside(nn.Module):
    """Writes a part of a tensor inside of a branch or a loop."""

    def __init__(self, loops: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear, self.loops = nn.Linear(8, 8), loops

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.linear(x)
        if not self.loops:
            return torch.cond(x.sum() > 0, _brightened, lambda x: x - 1, (x,))
        start = (torch.zeros((), dtype=torch.int64), x)
        return torch._higher_order_ops.while_loop(lambda i, x: i < 2, lambda i, x: (i + 1, _brightened(x)), start)[1]


@pytest.mark.sweep
@pytest.mark.parametrize("loops", [False, True], ids=["branch", "loop"])
def test_a_part_is_written_inside(loops):
    """The write reaches the whole tensor, as it does outside."""
    model, rows = WritesInside(loops).eval(), [(torch.randn(1, 8),) for _ in range(32)]
    program = micronpu.compile(model, rows[0], "ethos-u55-128", calibration=rows)
    with torch.no_grad():
        wanted = torch.cat([model(*row) for row in rows])
    found = torch.cat([program.run(*row) for row in rows])
    assert float((found - wanted).square().sum()) < 1e-3 * float(wanted.square().sum())
