"""Host parts become programs that say what ExecuTorch's own lowering makes of them, and take no more memory."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.compile.by_executorch import by_executorch
from tests.compile.random_networks import RandomNetwork
from torch import nn

from micronpu.base.errors import MicroNpuError, UnsupportedError
from micronpu.compiler.assemble import Staged, lowered, named_data_of
from micronpu.compiler.host import host_part
from micronpu.compiler.quantized import quantized_methods
from micronpu.frontend.exported import exported
from micronpu.partition.write import MethodInput, without_kernel, written
from micronpu.program.plan import read_plan
from micronpu.runtime.plugin import load_plugin
from micronpu.targets.registry import device_for
from micronpu.upstream.executorch import load_program
from micronpu.upstream.torch import tree_leaves

Rows = tuple[torch.Tensor, ...]


class Clock:
    """Takes no time."""

    def step(self, name: str) -> Any:
        import contextlib

        return contextlib.nullcontext(lambda part: None)


def host_of(model: nn.Module, examples: Rows, target: str, io: Any = None) -> Staged:
    """The host part of a model."""
    device = device_for(target)
    quantizer = device.quantizer(io=io)
    clock: Any = Clock()
    made = quantized_methods({"": (model.eval(), examples)}, {"": quantizer}, {"": [examples]}, clock)[""]
    return Staged(made, host_part(made.module, device, integer_io=made.integer_io))


def both(part: Staged) -> tuple[bytes, bytes]:
    """The program by our writer, and by ExecuTorch."""
    ours = lowered([part], False)[0].buffer
    return ours, by_executorch({"forward": (part.host.module, part.quantized.examples)}, named_data_of(part))


class Branches(nn.Module):
    """Two calls of the NPU round one float operator that no core has, several results, a nested output."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 3)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> Any:
        a = torch.relu(self.first(x))
        return {"b": (self.second(a), a), "c": [torch.relu(y) + y]}


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("target", "io", "layout"),
    [
        ("imxrt700", None, torch.contiguous_format),
        ("imxrt700", "int8", torch.channels_last),
        ("ethos-u55-128", None, torch.channels_last),
        ("ethos-u55-128", "int8", torch.contiguous_format),
    ],
)
def test_of_delegates_the_bytes_are_those_of_executorch(target: str, io: Any, layout: torch.memory_format) -> None:
    x = torch.randn(1, 3, 8, 8).to(memory_format=layout)
    ours, theirs = both(host_of(Branches(), (x, torch.randn(1, 5)), target, io))
    assert ours == theirs


@pytest.mark.sweep
def test_random_networks_on_an_npu() -> None:
    """The same bytes where the host only quantizes; the same results where it does more."""
    equal = 0
    for seed in (1, 3, 5, 8, 12, 17):
        network = RandomNetwork(seed, 5, wide=True)
        try:
            part = host_of(network, network.example, "ethos-u85-256" if seed % 2 else "imxrt700")
        except MicroNpuError:
            continue
        ours, theirs = both(part)
        equal += ours == theirs
        check_same(ours, theirs, part.quantized.examples, seed)
    assert equal >= 3


# ---------------------------------------------------------------- the same in meaning


class Mixed(nn.Module):
    """What an NPU takes, a core takes, and nobody takes, with views, casts and constants between."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.head = nn.Conv2d(2, 8, 3, padding=1), nn.Linear(8, 4)
        self.register_buffer("places", torch.tensor([2, 0]))

    def forward(self, x: torch.Tensor) -> Any:
        y = self.head(torch.relu(self.conv(x)).mean((2, 3)))
        z = torch.atan2(y, torch.tensor([0.5, 1.0, 2.0, 4.0])).reshape(2, 2).T
        return z.index_select(1, self.places.clamp(max=1)), (y > 0).to(torch.int32) + 1


def run(program: bytes, rows: Rows) -> list[torch.Tensor]:
    """The results, in the stock runtime with our plug-in."""
    load_plugin()
    method = load_program(program, profile=False, debug_buffer_size=0).load_method("forward")
    return [value.clone() for value in method(list(rows))]


def check_same(ours: bytes, theirs: bytes, rows: Rows, name: object = "") -> None:
    mine, other = run(ours, rows), run(theirs, rows)
    assert len(mine) == len(other), name
    for a, b in zip(mine, other, strict=True):
        assert a.dtype is b.dtype and torch.equal(a.nan_to_num(), b.nan_to_num()), name
    sizes = [sum(read_plan(program)[0].memories) for program in (ours, theirs)]
    assert sizes[0] <= sizes[1], name


@pytest.mark.sweep
@pytest.mark.parametrize("target", ["cortex-m55", "imxrt700-neutron-cortexm", "ethos-u85-256"])
def test_kernels_of_a_core_and_of_the_host(target: str) -> None:
    part = host_of(Mixed(), (torch.randn(1, 2, 6, 5),), target)
    check_same(*both(part), part.quantized.examples)


def test_a_loop() -> None:
    class Recurrent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.LSTM(4, 6)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layers(x)[0]

    part = host_of(Recurrent(), (torch.randn(130, 1, 4),), "cortex-m55")
    check_same(*both(part), part.quantized.examples)


FLOATS = (3, 5, 8, 11, 12, 18)


@pytest.mark.sweep
@pytest.mark.parametrize("seed", FLOATS)
def test_operators_of_the_host(seed: int) -> None:
    """Networks that nothing of is delegated: operators are taken apart, views take no step, types are cast."""
    network = RandomNetwork(seed, 6, wide=seed % 2 == 0)
    module = exported(network, network.example).module
    ours = written({"forward": MethodInput(module, network.example)})
    assert not without_kernel(ours.callers["forward"])
    check_same(ours.buffer, by_executorch({"forward": (module, network.example)}), network.example, seed)


def test_what_writes_into_a_tensor_of_its_own_becomes_functions() -> None:
    class Pads(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return nn.functional.pad(x, (1, 2), "circular").relu_().add_(1.0)

    x = torch.randn(1, 3, 8)
    program = written({"forward": MethodInput(exported(Pads().eval(), (x,)).module, (x,))}).buffer
    assert torch.equal(run(program, (x,))[0], Pads()(x))


def test_operators_without_a_kernel_of_the_right_form_are_named() -> None:
    library = torch.library.Library("micronpu_test_write", "DEF")
    library.define("odd(Tensor x) -> Tensor")
    library.impl("odd", lambda x: x + 1, "CompositeExplicitAutograd")

    class Odd(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.ops.micronpu_test_write.odd(x)

    x = torch.randn(3)
    with pytest.raises(UnsupportedError, match=r"cannot call micronpu_test_write::odd, as `odd` \(.*test_write.py"):
        written({"forward": MethodInput(exported(Odd().eval(), (x,)).module, (x,))})


def test_results_are_counted_as_the_tree_has_them() -> None:
    part = host_of(Branches(), (torch.randn(1, 3, 8, 8), torch.randn(1, 5)), "imxrt700")
    assert len(run(lowered([part], False)[0].buffer, part.quantized.examples)) == len(
        tree_leaves(Branches()(*part.quantized.examples))
    )
