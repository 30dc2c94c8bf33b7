"""Functions of one element that several operators write out: one table, as near to float as the operator for it."""

from __future__ import annotations

import copy
import math
import random
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from tests.compile.small import Small, conv, decibels
from torch import nn
from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e

import micronpu
from micronpu.frontend.program import is_quantize
from micronpu.frontend.run import Function, elementwise
from micronpu.quantize.qat import quantize_aware_training
from micronpu.targets.ethosu.options import EthosUOptions
from micronpu.targets.registry import device_for

Activation = Callable[[torch.Tensor], torch.Tensor]
TARGET = "ethos-u55-128"
WITHOUT = EthosUOptions(TARGET, disabled_passes=("functions_to_tables",))

# Written out by users and by exports to ONNX, and the operator that torch has for it, if any.
FORMS: dict[str, tuple[Activation, Activation | None]] = {
    "silu": (lambda x: x * torch.sigmoid(x), F.silu),
    "hardswish": (lambda x: x * F.relu6(x + 3) / 6, F.hardswish),
    "hardswish_of_clamp": (lambda x: x * torch.clamp(x / 6 + 0.5, 0, 1), F.hardswish),
    "gelu": (lambda x: x * 0.5 * (1 + torch.erf(x / math.sqrt(2))), F.gelu),
    "gelu_of_tanh": (
        lambda x: 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
        lambda x: F.gelu(x, approximate="tanh"),
    ),
    "mish": (lambda x: x * torch.tanh(torch.log(1 + torch.exp(x))), F.mish),
    "softsign": (lambda x: x / (1 + x.abs()), None),
    "cube": (lambda x: x * x * x, lambda x: x**3),
    "elu": (lambda x: torch.where(x > 0, x, torch.exp(x) - 1), F.elu),
    "polynomial": (lambda x: 1 + x * (0.5 + x * (-0.2 + 0.05 * x)), None),
    "clamps": (lambda x: torch.clamp((x.abs() - 0.3).clamp(min=0) ** 2, max=2.0), None),
    "tanhshrink": (lambda x: x - torch.tanh(x), None),
}


def network(function: Activation) -> nn.Module:
    return Small(lambda m, x: m.last(function(m.first(x))), first=conv(8, 16), last=conv(16, 8, 1))


def rows(number: int = 6) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    return [2 * torch.randn(1, 8, 16, 16, generator=generator) for _ in range(number)]


class Beside(nn.Module):
    """Networks side by side, each with an input of its own, so that none shares qparams with another."""

    def __init__(self, networks: Sequence[nn.Module]) -> None:
        super().__init__()
        self.networks = nn.ModuleList(networks)
        self.eval()

    def forward(self, *inputs: torch.Tensor) -> list[torch.Tensor]:
        return [network(x) for network, x in zip(self.networks, inputs, strict=True)]


def made_beside(networks: Sequence[nn.Module], **options: Any) -> tuple[Any, list[float]]:
    """The program of all, and how near each is to float in dB on other rows than those of calibration."""
    model, given = Beside(networks), [(x,) * len(networks) for x in rows()]
    program = micronpu.compile(model, given[0], TARGET, calibration=given[:4], **options)
    calls = [list(zip(program.run(*x), model(*x), strict=True)) for x in given[4:]]
    return program, [decibels(list(pairs)) for pairs in zip(*calls, strict=True)]


def made(model: nn.Module, target: str = TARGET, **options: Any) -> tuple[Any, float]:
    """As `made_beside`, of one."""
    given = rows()
    program = micronpu.compile(model, given[0], target, calibration=given[:4], **options)
    return program, decibels([(program.run(x), model(x)) for x in given[4:]])


def operations_of(program: Any) -> list[list[str]]:
    """The operations of each of the networks side by side."""
    found: dict[int, list[str]] = defaultdict(list)
    for node in (n for p in program.partitions for n in p.graph.nodes):
        if str(node.op.name) not in ("reshape", "transpose"):
            found[int(node.origin.module.split(".")[1])].append(str(node.op.name))
    return [found[number] for number in sorted(found)]


def operations(program: Any) -> list[str]:
    names = [str(n.op.name) for p in program.partitions for n in p.graph.nodes]
    return [name for name in names if name not in ("reshape", "transpose")]


def cycles(program: Any) -> float:
    return float(sum(latency.cycles for latency in program.report.latency))


@pytest.mark.sweep
def test_a_written_form_is_one_table() -> None:
    natives = {name: native for name, (_, native) in FORMS.items() if native is not None}
    program, near = made_beside([network(FORMS[name][0]) for name in natives])
    other, wanted = made_beside([network(native) for native in natives.values()])
    assert operations_of(program) == [["conv2d", "table", "conv2d"]] * len(natives)
    assert [name for name, own, n in zip(natives, near, wanted, strict=True) if own <= n - 0.3] == []
    assert len(program.buffer) <= 1.01 * len(other.buffer)
    assert cycles(program) <= 1.01 * cycles(other)
    alone = [network(written) for name, (written, _) in FORMS.items() if name not in natives]
    assert operations_of(made_beside(alone)[0]) == [["conv2d", "table", "conv2d"]] * len(alone)


def test_left_out_the_operators_stay_and_are_less_accurate() -> None:
    model = network(FORMS["clamps"][0])
    (_, near), (apart, less) = (made(model, options=options) for options in (None, WITHOUT))
    assert len(operations(apart)) > 4 and near > less + 1


@pytest.mark.parametrize(
    ("function", "is_smooth"),
    [
        (lambda x: torch.where(x > 0.5, x, 0.1 * x) * 2, False),  # a jump
        (lambda x: torch.where(x > 0.0, x, 0.1 * x) * 2, True),  # leaky_relu
        (lambda x: torch.floor(x * 3) * 0.2 + x, False),
        (lambda x: torch.rsqrt(x + 4.0) * 2, False),  # infinite at -4
        (lambda x: torch.rsqrt(x * x + 1.0) * x, True),
    ],
)
def test_functions_with_jumps_or_infinite_values_keep_their_operators(function: Activation, is_smooth: bool) -> None:
    prepared = prepare_pt2e(
        torch.export.export(network(function), (rows()[0],)).module(), device_for(TARGET).quantizer()
    )
    assert any(node.target is elementwise for node in prepared.graph.nodes) == is_smooth


def chain(dice: random.Random) -> Activation:
    """A random function of several operators, each of which reads earlier values."""
    unary: list[Activation] = [
        torch.tanh, torch.sigmoid, torch.abs, F.relu, torch.sin, F.softplus, torch.square,
        lambda x: x.clamp(-1.5, 2.0), lambda x: 0.7 * x + 0.2, lambda x: x / (1.0 + x.abs()), torch.erf,
    ]  # fmt: skip
    binary = [torch.add, torch.mul, torch.sub, torch.maximum, torch.minimum]
    plan = [(dice.choice(unary), dice.choice(binary), dice.random() < 0.5, dice.random()) for _ in range(5)]

    def function(x: torch.Tensor) -> torch.Tensor:
        values = [x]
        for one, two, joins, place in plan:
            new = one(values[-1])
            values.append(two(new, values[int(place * len(values))]) if joins else new)
        return values[-1]

    return function


def small(function: Activation) -> nn.Module:
    return Small(lambda _, x: function(x))


def test_a_random_chain_is_the_rounded_function() -> None:
    functions = [chain(random.Random(seed)) for seed in range(8)]
    x = (torch.linspace(-3, 3, 256).reshape(1, 256),) * 8
    how = micronpu.Quantization(io="int8")
    program: Any = micronpu.compile(Beside([small(f) for f in functions]), x, TARGET, calibration=[x], quantization=how)
    assert operations_of(program) == [["table"]] * 8
    every = torch.arange(-128, 128, dtype=torch.int8).reshape(1, 256)
    ends = zip(program.integer_io.inputs, program.integer_io.outputs, strict=True)
    for function, (read, result), given in zip(functions, ends, program.run(*[every] * 8), strict=True):
        found = given.double() - result.zero_point
        wanted = function((every.double() - read.zero_point) * read.scale) / result.scale
        wanted = wanted.clamp(-128 - result.zero_point, 127 - result.zero_point)
        assert float((found - wanted).abs().max()) <= 0.51


def joined_chain(dice: random.Random) -> Activation:
    """A random chain of operators that share qparams with others, or that others read."""
    unary: list[Activation] = [
        lambda x: x.clamp(-0.2, 0.3), lambda x: 30 * x, lambda x: x + 0.7, F.relu6, torch.sigmoid,
    ]  # fmt: skip
    binary = [torch.add, torch.mul, lambda x, y: torch.cat([x[:, :4], y[:, 4:]], 1)]
    plan = [(dice.choice(unary), dice.choice(binary), dice.random() < 0.3, dice.random()) for _ in range(6)]

    def function(x: torch.Tensor) -> torch.Tensor:
        values = [x]
        for one, two, joins, place in plan:
            new = one(values[-1])
            values.append(two(new, values[int(place * len(values))]) if joins else new)
        return torch.cat([values[-1], values[-3], x], 1)

    return function


@pytest.mark.sweep
def test_no_function_is_worse_placed_than_its_operators() -> None:
    """A product and a clamp that no operator computes with it were a function, but not imported as one."""
    chains = [small(joined_chain(random.Random(seed))) for seed in range(8)]
    assert not made_beside(chains, options=WITHOUT)[0].report.host
    assert not made_beside(chains)[0].report.host


def test_a_clamp_inside_limits_the_range_that_the_function_reads() -> None:
    """Without the limits it was 1.1 to 2.7 dB farther from float than its operators."""
    functions: list[Activation] = [
        lambda x: torch.tanh(x.clamp(-0.02, 0.03) * 20),
        lambda x: (y := x.clamp(-0.02, 0.03)) * torch.sigmoid(20 * y),
        lambda x: (40 * x + 0.5).clamp(0, 1).square(),
    ]
    models = [Small(lambda m, x, f=f: f(m.first(x)), first=conv(8, 16)) for f in functions]
    (program, near), (_, wanted) = (made_beside(models, options=options) for options in (None, WITHOUT))
    assert operations_of(program) == [["conv2d", "table"]] * 3
    assert all(own > other - 0.3 for own, other in zip(near, wanted, strict=True)), (near, wanted)


@pytest.mark.parametrize(
    ("function", "end"),
    [(lambda x: 5 * torch.tanh(x), math.atanh(1 - 1 / 512)), (lambda x: torch.sigmoid(x) * 2 - 0.5, math.log(511))],
)
def test_what_saturates_inside_limits_the_range_that_the_function_reads(function: Activation, end: float) -> None:
    """Joined with other values, the range that was wider cost 4 dB."""
    model = Small(lambda m, x: function(m.first(x)), first=conv(8, 16))
    model.first.weight.data *= 100
    program, _ = made(model)
    scales = {n.args[0].name: n.args[1] for n in program.quantized.graph.nodes if is_quantize(n)}
    assert scales["conv2d"] == pytest.approx(2 * end / 255, rel=0.03)


@pytest.mark.parametrize(
    ("steps", "end"),
    [
        ((("tanh.default", ("%0",)), ("mul.Tensor", ("%1", -5.4))), math.atanh(1 - 1 / 512)),
        ((("sigmoid.default", ("%0",)), ("log.default", ("%1",))), None),  # whose tail is a line
        ((("sigmoid.default", ("%0",)), ("mul.Tensor", ("%1", "%0"))), None),  # which another operator reads, too
    ],
)
def test_a_function_saturates_where_its_operators_do(steps: Any, end: float | None) -> None:
    found = Function(tuple((*step, {}) for step in steps)).saturates_from(1 / 512)
    assert found is None if end is None else found == pytest.approx(end, rel=0.02)


@pytest.mark.parametrize(
    ("steps", "ends"),
    [
        ((("clamp.default", ("%0", -0.02, 0.03)), ("tanh.default", ("%1",))), (-0.02, 0.03)),
        ((("mul.Tensor", ("%0", 3.0)), ("clamp.default", ("%1", 0.0, 600.0))), (0.0, 200.0)),
        ((("add.Tensor", ("%0", 3.0)), ("relu6.default", ("%1",)), ("mul.Tensor", ("%2", "%0"))), (-3.0, math.inf)),
        ((("sin.default", ("%0",)), ("mul.Tensor", ("%1", 2.0))), (-math.inf, math.inf)),
    ],
)
def test_a_function_is_read_up_to_where_it_is_constant(steps: Any, ends: tuple[float, float]) -> None:
    assert Function(tuple((*step, {}) for step in steps)).reads_within() == pytest.approx(ends, abs=1e-9)


def test_a_middle_value_with_other_readers_is_a_table_of_its_own() -> None:
    def forward(m: Any, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        gate = torch.sigmoid(m.first(x) * 1.5)
        return m.last(gate * 2 - 1), gate.mean((2, 3)) * 3

    x = rows()
    program = micronpu.compile(Small(forward, first=conv(), last=conv(8, 8, 1)), x[0], TARGET, calibration=x)
    assert operations(program).count("table") == 2
    assert program.report.agreement.reason == ""


def test_what_a_mask_hides_is_hidden_behind_the_function() -> None:
    mask = torch.arange(8).remainder(3) == 0
    model = Small(
        lambda m, x: (lambda y: y * torch.sigmoid(y))(m.layer(x).masked_fill(mask, -1e4)), layer=nn.Linear(8, 8)
    )
    x = [torch.randn(1, 8, generator=torch.Generator().manual_seed(i)) for i in range(8)]
    program = micronpu.compile(model, x[0], TARGET, calibration=x)
    noise = torch.stack([program.run(row) - model(row) for row in x])
    wanted = torch.stack([model(row) for row in x])
    assert float(10 * torch.log10(wanted.square().sum() / noise.square().sum())) > 33
    assert not program.report.host


def test_in_int16_the_table_is_as_near_or_the_operators_stay() -> None:
    is_table = {"silu": True, "gelu": True, "cube": False, "softsign": False}
    models = [network(FORMS[name][0]) for name in is_table]
    program, near = made_beside(models, quantization="int16")
    _, wanted = made_beside(models, quantization="int16", options=WITHOUT)
    assert [own == ["conv2d", "table", "conv2d"] for own in operations_of(program)] == [*is_table.values()]
    assert all(own > other - 0.3 for own, other in zip(near, wanted, strict=True)), (near, wanted)


def test_pt2e_gives_the_same_program_also_from_a_copy() -> None:
    model, given = network(FORMS["gelu"][0]), rows()
    direct = micronpu.compile(model, given[0], TARGET, calibration=given)
    prepared = prepare_pt2e(torch.export.export(model, (given[0],)).module(), device_for(TARGET).quantizer())
    for x in given:
        prepared(x)
    one, other = copy.deepcopy(prepared), copy.deepcopy(prepared)  # a call is a sample to its observers
    assert torch.equal(one(given[0]), other(given[0]))
    module = convert_pt2e(prepared)
    assert operations(micronpu.compile(module, given[0], TARGET)) == operations(direct)
    assert torch.equal(micronpu.compile(module, given[0], TARGET).run(given[1]), direct.run(given[1]))


def test_it_trains() -> None:
    def train(module: nn.Module) -> None:
        optimizer = torch.optim.SGD(module.parameters(), 1e-3)
        for x in rows(3):
            optimizer.zero_grad()
            module(x).square().mean().backward()
            optimizer.step()

    model, x = network(FORMS["silu"][0]), rows(1)[0]
    module = quantize_aware_training(model, (x,), train, device_for(TARGET).quantizer(is_qat=True))
    program = micronpu.compile(module, x, TARGET)
    assert operations(program) == ["conv2d", "table", "conv2d"]
    assert program.report.agreement.reason == ""


def test_a_chip_without_tables_keeps_its_operators() -> None:
    program, _ = made(network(FORMS["hardswish"][0]), "imxrt700")
    assert "table" not in operations(program) and not program.report.host


def test_a_function_is_evaluated_in_double_precision() -> None:
    steps = (
        ("mul.Tensor", ("%0", 3.0), {}),
        ("gt.Scalar", ("%0", 0.5), {}),
        ("where.self", ("%2", "%1", 0.25), {}),
    )
    assert Function(steps)(np.array([0.1, 0.7])).tolist() == [0.25, 0.7 * 3]


@pytest.mark.parametrize(("at", "is_smooth"), [(1e3, False), (-0.125, False), (0.0, True)])
def test_a_jump_is_found_wherever_it_is(at: float, is_smooth: bool) -> None:
    chosen = ("where.self", ("%1", "%0", "%2"), {})
    assert Function((("gt.Scalar", ("%0", at), {}), ("mul.Tensor", ("%0", 0.1), {}), chosen)).is_smooth() == is_smooth
