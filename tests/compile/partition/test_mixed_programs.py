"""Programs of several partitions with operators of the host between, before, after and beside them.

The expected result of every program comes from a walk over the quantized model: partitions by the reference
interpreter of the graph, everything else by PyTorch.  It shares nothing with the way that outlines and lowers programs.
Operators of the host are chosen to be exact in float32, so that results are compared bit for bit.
"""

from __future__ import annotations

import copy
import functools
import hashlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.fx import Node, map_arg
from torch.utils._pytree import tree_leaves

import micronpu
from micronpu.base.errors import InternalError
from micronpu.frontend.importer import import_nodes
from micronpu.frontend.program import ProgramView
from micronpu.ir import interpret
from micronpu.partition.outline import outline
from micronpu.targets.neutron.device import NeutronDevice
from micronpu.targets.neutron.options import NeutronOptions


def on_the_host(x: torch.Tensor) -> torch.Tensor:
    """Sorts channels: an operator that no rule knows, and that moves floats without rounding them."""
    return torch.topk(x, x.shape[1], 1)[0]


class Layers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Conv2d(3, 8, 3, padding=1)
        self.b = nn.Conv2d(8, 4, 1)


class HostBetween(Layers):
    def forward(self, x):
        return self.b(on_the_host(torch.relu(self.a(x))))


class HostAround(Layers):
    def forward(self, x):
        return on_the_host(self.b(self.a(on_the_host(x))))


class Rejoined(Layers):
    """The result of a partition goes to the next one directly and through the host."""

    def forward(self, x):
        y = torch.relu(self.a(x))
        return self.b(y + on_the_host(y))


class UsedTwice(Layers):
    """An NPU result that the next NPU operator, the host and the caller read."""

    def forward(self, x):
        y = torch.relu(self.a(x))
        return self.b(y), on_the_host(y), y


class PassedThrough(Layers):
    def forward(self, x):
        return x, self.a(x)


class SameOutputTwice(Layers):
    def forward(self, x):
        y = self.a(x)
        return y, y


class Dictionaries(Layers):
    def forward(self, x, z):
        y = self.a(x)
        return {"a": y, "b": (self.b(y), [z])}


class TwoInputs(Layers):
    def forward(self, x, z):
        return self.a(x) + self.a(z)


class UnusedInput(Layers):
    def forward(self, x, z):
        return self.a(z)


class Integers(Layers):
    """An input that is no activation, and an output made from it on the host."""

    def forward(self, x, i):
        return self.b(self.a(x)), i + 1


class Embedded(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.fc = nn.Embedding(10, 8), nn.Linear(8, 4)

    def forward(self, i):
        return self.fc(self.table(i))


class ConstantOutput(Layers):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("names", torch.arange(4.0))

    def forward(self, x):
        return self.a(x), self.names


class OtherOutputs(Layers):
    def forward(self, x):
        return self.a(x), None, 3


class OnlyHost(nn.Module):
    def forward(self, x):
        return on_the_host(x)


class Nothing(nn.Module):
    def forward(self, x):
        return x


class WritesThroughView(Layers):
    def forward(self, x):
        y = self.a(x)
        y[:, 0] += 1
        return self.b(y * 2)


class WritesIntoZeros(Layers):
    def forward(self, x):
        y = torch.zeros_like(x)
        y[:, 0] = x[:, 1]
        return self.a(y)


class ViewedBeforeWrite(Layers):
    def forward(self, x):
        y = self.a(x)
        flat = y.view(1, -1)
        y += 1
        return self.b(y), flat * 2


class WritesIntoInput(Layers):
    def forward(self, x):
        x += 1
        return self.a(x)


X = (1, 3, 6, 5)
# Model, shapes of the inputs (None: two integers), operators on the NPU, operators in all, partitions.
PROGRAMS: list[tuple[type[nn.Module], tuple[tuple[int, ...] | None, ...], tuple[int, int, int]]] = [
    (HostBetween, (X,), (3, 4, 2)),
    (HostAround, (X,), (2, 4, 1)),
    (Rejoined, (X,), (4, 5, 2)),
    (UsedTwice, (X,), (3, 4, 1)),
    (PassedThrough, (X,), (1, 1, 1)),
    (SameOutputTwice, (X,), (1, 1, 1)),
    (Dictionaries, (X, X), (2, 2, 1)),
    (TwoInputs, (X, X), (3, 3, 1)),
    (UnusedInput, (X, X), (1, 1, 1)),
    (Integers, (X, None), (2, 3, 1)),
    (ConstantOutput, (X,), (1, 1, 1)),
    (OtherOutputs, (X,), (1, 1, 1)),
    (OnlyHost, (X,), (0, 1, 0)),
    (Nothing, (X,), (0, 0, 0)),
]
NAMES = [model.__name__ for model, _, _ in PROGRAMS]


def sample(shapes: Sequence[tuple[int, ...] | None], seed: int) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.tensor([seed, 2]) if s is None else torch.randn(s, generator=generator) for s in shapes)


@functools.cache
def compiled(
    model: type[nn.Module], shapes: tuple[tuple[int, ...] | None, ...] = (X,), **options: Any
) -> micronpu.CompiledProgram:
    torch.manual_seed(1)
    calibration = [sample(shapes, seed) for seed in range(4)]
    return micronpu.compile(
        model().eval(), sample(shapes, 0), **{"target": "imxrt700", "calibration": calibration} | options
    )


def groups_of(program: micronpu.CompiledProgram):
    view = ProgramView(program.quantized)
    return view, NeutronDevice(NeutronOptions()).partition(view).partitions


def expected(program: micronpu.CompiledProgram, inputs: Sequence[torch.Tensor]) -> list[Any]:
    """What the program has to return."""
    view, groups = groups_of(program)
    module, values = program.quantized, dict(zip(view.inputs, inputs, strict=True))
    home = {output: group for group in groups for output in group.outputs}
    results: dict[Node, Any] = {}

    def value(node: Node) -> Any:
        if node in values:
            return values[node]
        if node in home:
            group = home[node]
            graph = import_nodes(view, group.nodes, list(group.inputs), list(group.outputs))
            found = interpret(graph, [value(n).numpy() for n in group.inputs])
            results.update(zip(group.outputs, map(torch.from_numpy, found), strict=True))
            return results[node]
        if node.op == "get_attr":
            return view.constant(node)
        args, kwargs = map_arg((node.args, node.kwargs), value)
        return node.target(*args, **kwargs)

    assert isinstance(module, torch.fx.GraphModule)
    (output,) = (n for n in module.graph.nodes if n.op == "output")
    with torch.no_grad():
        return tree_leaves(map_arg(output.args[0], value), is_leaf=lambda v: v is None)


def run(program: micronpu.CompiledProgram, inputs: Sequence[torch.Tensor]) -> list[Any]:
    return tree_leaves(program.run(*inputs), is_leaf=lambda v: v is None)


def check(got: Sequence[Any], wanted: Sequence[Any]) -> None:
    assert len(got) == len(wanted)
    for mine, theirs in zip(got, wanted, strict=True):
        if isinstance(theirs, torch.Tensor):
            assert mine.dtype == theirs.dtype
            assert torch.equal(mine, theirs), (mine - theirs).abs().max()
        else:
            assert mine == theirs


@pytest.mark.sweep
@pytest.mark.parametrize(("model", "shapes", "counts"), PROGRAMS, ids=NAMES)
def test_program_is_partitions_and_host(model, shapes, counts):
    program = compiled(model, shapes)
    report = program.report
    assert (report.delegated, len(report.verdicts), report.partitions) == counts
    assert len(program.partitions) == report.partitions
    for seed in (7, 8):
        inputs = sample(shapes, seed)
        check(run(program, inputs), expected(program, inputs))


def test_result_is_near_the_float_model():
    """The walk above says what the quantized model computes; this says that it is the model's meaning."""
    for model, shapes, _ in PROGRAMS:
        program, inputs = compiled(model, shapes), sample(shapes, 9)
        torch.manual_seed(1)
        with torch.no_grad():
            float_results = tree_leaves(model().eval()(*inputs), is_leaf=lambda v: v is None)
        for mine, theirs in zip(run(program, inputs), float_results, strict=True):
            if isinstance(theirs, torch.Tensor) and theirs.is_floating_point():
                noise = (mine - theirs).norm() / theirs.norm().clamp(min=1e-9)
                assert noise < 10 ** (-25 / 20), f"{model.__name__}: less than 25 dB"


def test_unknown_operator_stays_on_the_host_with_a_reason():
    program = compiled(HostBetween)
    (verdict,) = program.report.host
    assert (verdict.operator, verdict.shape) == ("topk.default", (1, 8, 6, 5))
    line = HostBetween.forward.__code__.co_firstlineno + 1  # torch tells the line of the module, not of the helper
    assert str(verdict.reasons[0]) == (
        f"`topk` ({__file__}:{line}): The operator, in this form and quantized, is one that micronpu can "
        "express. Found: No operator of micronpu imports topk.default. Try: return the scores and choose among them in "
        "the application; torch.minimum and torch.maximum sort a few values."
    )


class Erfinv(Layers):
    def forward(self, x):
        return self.b(torch.erfinv(torch.tanh(self.a(x)) * 0.5))


def test_operator_without_a_kernel_is_refused_unless_it_is_allowed():
    with pytest.raises(micronpu.MicroNpuError) as caught:
        compiled(Erfinv)
    assert "no portable kernel for aten::erfinv.out, which `erfinv` (" in str(caught.value)
    assert "test_mixed_programs.py:" in str(caught.value)
    program = compiled(Erfinv, verify=micronpu.Verification(allow_missing_kernels=True))
    assert [v.operator for v in program.report.host] == ["erfinv.default"]
    assert any(
        note.startswith("ExecuTorch has no portable kernel for aten::erfinv.out") for note in program.report.notes
    )
    assert not any("kernel for" in note for note in compiled(HostBetween).report.notes)
    with pytest.raises(
        micronpu.MicroNpuError, match=r"operators that the host runtime does not have: aten::erfinv\.out"
    ):
        program.run(*sample((X,), 1))


@pytest.mark.parametrize("model", [WritesThroughView, WritesIntoZeros, ViewedBeforeWrite, WritesIntoInput])
def test_writes_that_others_see(model):
    """A write through a view is a function of what was there; nothing of it is lost, and no input is changed."""
    program, inputs = compiled(model), sample((X,), 5)
    before = inputs[0].clone()
    results = run(program, inputs)
    assert torch.equal(inputs[0], before)
    check(results, expected(program, inputs))
    torch.manual_seed(1)
    with torch.no_grad():
        float_results = tree_leaves(model().eval()(before.clone()))
    for mine, theirs in zip(results, float_results, strict=True):
        assert (mine - theirs).norm() / theirs.norm() < 10 ** (-25 / 20)


def test_calibration_data_is_not_changed():
    data = [sample((X,), seed) for seed in range(3)]
    copies = [x.clone() for (x,) in data]
    torch.manual_seed(1)
    micronpu.compile(WritesIntoInput().eval(), data[0], "imxrt700", calibration=data)
    assert all(torch.equal(x, c) for (x,), c in zip(data, copies, strict=True))


def test_integer_inputs_and_outputs():
    """A program whose quantization at the border was cut off: int8 in, int8 out."""
    program = compiled(HostBetween)
    module = copy.deepcopy(program.quantized)
    (x,) = (n for n in module.graph.nodes if n.op == "placeholder")
    (quantize,) = x.users
    quantize.replace_all_uses_with(x)
    module.graph.erase_node(quantize)
    (output,) = (n for n in module.graph.nodes if n.op == "output")
    (dequantize,) = output.all_input_nodes
    dequantize.replace_all_uses_with(dequantize.args[0])
    module.graph.erase_node(dequantize)
    module.recompile()
    inputs = torch.randint(-128, 128, X, dtype=torch.int8, generator=torch.Generator().manual_seed(3))
    integer = micronpu.compile(torch.export.export(module, (inputs,)), inputs, "imxrt700")
    assert integer.report.delegated == 3
    assert integer.report.partitions == 2
    result = integer.run(inputs)
    assert result.dtype is torch.int8
    check([result], expected(integer, [inputs]))


def test_a_partition_that_waits_for_itself_is_an_error():
    """Both partitions of a program with the host between, forced into one call: found, not followed for ever."""
    program = compiled(HostBetween)
    _, (first, second) = groups_of(program)
    joined = replace(
        first,
        nodes=first.nodes + second.nodes,
        inputs=first.inputs + second.inputs,
        outputs=first.outputs + second.outputs,
    )
    with pytest.raises(InternalError, match=r"A partition waits for its own result `quantize"):
        outline(program.quantized, [joined], [("call", nn.Identity())])


# --- determinism --------------------------------------------------------------------------------------------------

SOME = ("HostBetween", "UsedTwice", "Dictionaries")


def digests() -> list[str]:
    """Digests of some programs and reports."""
    made = [compiled(model, shapes) for model, shapes, _ in PROGRAMS if model.__name__ in SOME]
    return [hashlib.sha256(data).hexdigest() for p in made for data in (p.buffer, p.report.to_json().encode())]


def test_the_walk_sees_a_difference():
    """One int8 step in one element of one partition is found; otherwise nothing above could fail."""
    program, inputs = compiled(HostBetween), sample((X,), 7)
    (wanted,) = expected(program, inputs)
    changed = wanted.clone()
    changed.view(-1)[-1] += float(np.diff(np.unique(wanted.numpy())).min())
    with pytest.raises(AssertionError):
        check(run(program, inputs), [changed])
