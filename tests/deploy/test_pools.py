"""Pools of exactly the predicted size suffice in a real runtime, and a byte less does not: forty programs and more."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from executorch.exir import ExecutorchBackendConfig, to_edge
from torch import nn

import micronpu
from micronpu.ethosu import EthosUOptions
from micronpu.neutron import NeutronOptions
from micronpu.program.edit import strip
from micronpu.program.plan import needs_data, read_plan
from micronpu.program.pte import read_pte
from micronpu.targets import board as pools
from tests.compile.small import Small, batches, conv, image, linear
from tests.deploy import firmware, programs
from tests.deploy.host_build import host, host_sizes, libraries
from tests.tools import need

pytestmark = pytest.mark.filterwarnings("ignore")
HERE = Path(__file__).parent


@dataclass(frozen=True)
class Made:
    """A program with the files beside it, by name."""

    buffer: bytes
    files: dict[str, bytes]


def _plain(model: nn.Module, *inputs: torch.Tensor, external: bool = False, dynamic: Any = None) -> Made:
    """A program that ExecuTorch made by itself: portable kernels alone."""
    exported = torch.export.export(model.eval(), inputs, dynamic_shapes=dynamic)
    made = to_edge(exported).to_executorch(ExecutorchBackendConfig(external_constants=external))
    return Made(bytes(made.buffer), {f"{name}.ptd": bytes(data) for name, data in made._tensor_data.items()})


def _small(function: Callable[..., Any], *inputs: torch.Tensor, **parts: Any) -> Callable[[], Made]:
    return lambda: _plain(Small(function, **parts), *inputs)


class Keeps(nn.Module):
    """A buffer that a program of ExecuTorch's own writes."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("kept", torch.zeros(1, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.kept.add_(x)
        return self.kept * 2.0


def _condition(self: Any, x: torch.Tensor) -> Any:
    return torch.cond(x.sum() > 0, lambda y: y + 1.0, lambda y: y * 2.0, (x,))


VECTOR, MATRIX, PICTURE = torch.ones(8), torch.ones(6, 6), torch.ones(1, 3, 8, 8)
VARIES = {0: torch.export.Dim("rows", min=2, max=8)}
PLAIN: dict[str, Callable[[], Made]] = {
    "no kernel's constants": _small(lambda self, x: x + x, VECTOR),
    "one element": _small(lambda self, x: x * 3.0, torch.tensor(2.0)),
    "rank five": _small(lambda self, x: (x * 2).sum((1, 3)), torch.ones(2, 3, 1, 4, 2)),
    "linear": _small(lambda self, x: self.a(x), torch.ones(2, 8), a=linear(8, 3)),
    "convolution": _small(lambda self, x: self.a(x), PICTURE, a=conv(3, 4)),
    "convolution of one axis": _small(lambda self, x: self.a(x), torch.ones(1, 3, 9), a=nn.Conv1d(3, 4, 3)),
    "batch norm": _small(lambda self, x: self.b(self.a(x)), PICTURE, a=conv(3, 4), b=nn.BatchNorm2d(4)),
    "layer norm": _small(lambda self, x: self.a(x), MATRIX, a=nn.LayerNorm(6)),
    "softmax of a product": _small(lambda self, x, y: torch.softmax(x @ y, -1), MATRIX, MATRIX),
    "concatenation": _small(lambda self, x, y: torch.cat([x, y, x * 2], 1), MATRIX, MATRIX),
    "two outputs": _small(lambda self, x: (x + 1, torch.relu(x)), MATRIX),
    "parts": _small(lambda self, x: torch.split(x, 2), MATRIX),
    "index": _small(lambda self, x, i: x[:, i], MATRIX, torch.tensor([0, 2])),
    "embedding": _small(lambda self, i: self.a(i), torch.tensor([[1, 2]]), a=nn.Embedding(5, 4)),
    "truth values": _small(lambda self, x, y: torch.where(x > y, x, y * 2), MATRIX, MATRIX),
    "mean and variance": _small(lambda self, x: x.mean(0) + x.var(0), MATRIX),
    "maximum with its place": _small(lambda self, x: tuple(torch.max(x, 1)), MATRIX),
    "pool": _small(lambda self, x: nn.functional.max_pool2d(x, 2), PICTURE),
    "resize": _small(lambda self, x: nn.functional.interpolate(x, scale_factor=2.0), PICTURE),
    "a cell": _small(lambda self, x, h: self.a(x, h), torch.ones(1, 4), torch.ones(1, 6), a=nn.GRUCell(4, 6)),
    "a condition": _small(_condition, VECTOR),
    "64-bit numbers": _small(lambda self, x: x + 3, torch.arange(4)),
    "rows that vary": lambda: _plain(Small(lambda self, x: x @ x.T, a=linear()), MATRIX, dynamic=((VARIES,),)),
    "a buffer that is written": lambda: _plain(Keeps(), torch.ones(1, 4)),
    "constants in a file": lambda: _plain(
        Small(lambda self, x: self.a(x), a=linear(8, 3)), torch.ones(2, 8), external=True
    ),
    "more constants in a file": lambda: _plain(
        Small(lambda self, x: self.b(self.a(x)).flatten(1), a=conv(3, 4), b=conv(4, 2)), PICTURE, external=True
    ),
}


def _network(self: Any, x: torch.Tensor) -> torch.Tensor:
    return self.last(nn.functional.avg_pool2d(torch.relu(self.first(x)), 6).flatten(1))


def _parts(self: Any, x: torch.Tensor) -> torch.Tensor:
    return self.second(torch.atan2(self.first(x), x))


def _ours(target: str, function: Any = _network, io: str | None = "int8", options: Any = None, **parts: Any) -> Made:
    parts = parts or {"first": conv(8, 8), "last": linear(8, 10)}
    inputs = (image(),)
    made = micronpu.compile(
        Small(function, **parts),
        inputs,
        target,
        calibration=batches(inputs, 2),
        quantization=micronpu.Quantization(io=io),
        options=options,
        verify=False,
    )
    return Made(bytes(made.buffer), {name: bytes(data) for name, data in made.data_files.items()})


def _methods() -> Made:
    """Prefill and decode with one cache."""
    from tests.compile.compiler.test_methods import compiled

    return Made(compiled(verify=False).buffer, {})


TWO_PARTS = {"first": conv(8, 8), "second": conv(8, 4)}
OURS: dict[str, Callable[[], Made]] = {
    "U65": lambda: _ours("ethos-u65-256"),
    "U85": lambda: _ours("ethos-u85-256"),
    "U55-32": lambda: _ours("ethos-u55-32"),
    "Cortex-M33": lambda: _ours("cortex-m33"),
    "Cortex-M55": lambda: _ours("cortex-m55"),
    "Cortex-M7, int16": lambda: _ours("stm32f746", io=None),
    "two partitions": lambda: _ours("corstone300", _parts, **TWO_PARTS),
    "two partitions in float": lambda: _ours("corstone300-ethosu", _parts, io=None, **TWO_PARTS),
    "two of a Neutron": lambda: _ours("mcxn947", _parts, **TWO_PARTS),
    "weights in a separate file": lambda: _ours(
        "corstone300", options=EthosUOptions("ethos-u55-128", external_weights="w")
    ),
    "weights and commands in files": lambda: _ours(
        "corstone300", options=EthosUOptions("ethos-u55-128", external_weights="w", external_commands="c")
    ),
    "two methods of a U85 with one state": _methods,
    "a Neutron with few kernels of the core": lambda: _ours(
        "imxrt700",
        options=NeutronOptions(silicon="imxrt700", operators_not_to_delegate=("aten.avg_pool2d.default",)),
    ),
}


@functools.cache
def made(name: str) -> Made:
    if name in programs.KINDS:
        return Made(programs.program(name).buffer, {})
    return (PLAIN.get(name) or OURS[name])()


@pytest.fixture(scope="module")
def counter(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, pools.Sizes]:
    """The program with exact pools, and the sizes of ExecuTorch's structures on this machine."""
    need("g++")
    folder = tmp_path_factory.mktemp("counter")
    flags = ("g++", "-std=c++17", "-Wno-deprecated-declarations", f"-I{HERE}", *firmware.executorch_flags())
    host([*flags, str(HERE / "exact_pools.cpp"), "-o", str(folder / "exact"), *libraries()])
    return folder / "exact", host_sizes(folder)


@pytest.mark.sweep
@pytest.mark.parametrize("stripped", [True, False], ids=["as on the board", "as on the laptop"])
@pytest.mark.parametrize("name", [*programs.KINDS, *PLAIN, *OURS])
def test_pools_of_the_predicted_size_suffice_and_a_byte_less_does_not(
    name: str, stripped: bool, counter: tuple[Path, pools.Sizes], tmp_path: Path
) -> None:
    """In the runtime of the pinned ExecuTorch, with the sizes that its structures have on this machine."""
    run, own = counter
    buffer = strip(made(name).buffer) if stripped else made(name).buffer
    plans = [read_plan(buffer, method=method)[0] for method in read_pte(buffer).methods]
    delegates = [delegate for plan in plans for delegate in plan.delegates]
    (tmp_path / "model.pte").write_bytes(buffer)
    for file, data in made(name).files.items():
        (tmp_path / file).write_bytes(data)
    assert needs_data(plans[0]) == bool(made(name).files)
    handles = {backend: 2 * size for backend, size in pools.HANDLES.items()}  # of 64-bit pointers
    found, method = pools.pools_of_all(plans, own), pools.methods_bytes(plans, own, handles)
    scratch = [*found.scratch, *[0] * (len(delegates) - len(found.scratch))]
    of_core = [o for o in sorted({o for plan in plans for o in plan.operators}) if o.startswith("cortex_m::")]

    def ends(method_pool: int, temporary_pool: int) -> str:
        lists = (",".join(str(handles[d.backend]) for d in delegates), ",".join(map(str, scratch)))
        beside = ",".join(str(tmp_path / file) for file in made(name).files)
        pool_sizes = (str(method_pool), str(temporary_pool))
        return host([str(run), str(tmp_path / "model.pte"), *pool_sizes, *lists, beside, *of_core]).strip()

    assert ends(method, found.temporary) == "ok"
    assert ends(method - 1, found.temporary) == "the method does not load"
    if found.temporary:
        assert ends(method, found.temporary - 1) != "ok"


def test_there_are_forty_programs() -> None:
    assert len({*programs.KINDS, *PLAIN, *OURS}) >= 40
