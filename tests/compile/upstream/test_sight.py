"""What is seen at once in an export is what torch finds the long way: whole programs, shapes, lines, orders."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.export import Dim

from micronpu.frontend.export import export
from micronpu.upstream import sight
from micronpu.upstream.idle import graphs_left_unwritten

aten = torch.ops.aten
Rows = tuple[torch.Tensor, ...]


def layers(*norms: nn.Module) -> nn.Module:
    """Convolutions with every norm and function that is seen at once, in shapes of their own."""
    functions = (nn.Hardtanh(-1, 2), nn.ReLU6(), nn.Hardswish(), nn.Hardsigmoid(), nn.ReLU())
    made: list[nn.Module] = []
    for i, function in enumerate(functions):
        made += [nn.Conv2d(4 + i, 5 + i, 3, padding=i % 2), nn.BatchNorm2d(5 + i, affine=i != 2), function]
    return nn.Sequential(*made, nn.Flatten(), nn.LazyLinear(6), nn.BatchNorm1d(6), nn.Unflatten(1, (2, 3)))


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"y": self.layer(x).reshape(-1, 4), "z": x.view(2, -1)}


class States(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("state", torch.zeros(2, 3))
        self.norm = nn.BatchNorm1d(3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.state.copy_(self.norm(self.state + x))
        return self.state.view(6)


PICTURE = torch.randn(1, 4, 9, 9)
MODELS: dict[str, tuple[Callable[[], nn.Module], Rows]] = {
    "layers": (layers, (PICTURE,)),
    "channels last": (layers, (PICTURE.to(memory_format=torch.channels_last),)),
    "strides of its own": (layers, (torch.randn(2, 9, 4, 9).transpose(1, 2),)),
    "one pixel": (lambda: nn.Sequential(nn.BatchNorm2d(4), nn.ReLU6(), nn.BatchNorm2d(4)), (torch.randn(1, 4, 1, 1),)),
    "double": (lambda: nn.BatchNorm2d(4).double(), (PICTURE.double(),)),
    "without statistics": (lambda: nn.BatchNorm2d(4, track_running_stats=False), (PICTURE,)),
    "volumes": (lambda: nn.Sequential(nn.BatchNorm3d(2), nn.Hardswish()), (torch.randn(1, 2, 3, 4, 5),)),
    "attention": (Attention, (torch.randn(1, 4, 8),)),
    "states": (States, (torch.randn(2, 3),)),
}


def told(program: torch.export.ExportedProgram) -> tuple[Any, ...]:
    """All about a program, its nodes with what is noted of each."""

    def of(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            own = tuple(value.shape), value.stride(), value.dtype, value.device, value.storage_offset()
            return (*own, value.untyped_storage().nbytes(), value.requires_grad, type(value))
        return tuple(map(of, value)) if isinstance(value, (tuple, list)) else value

    nodes = [
        (n.format_node(), of(n.meta.get("val")), {k: str(v) for k, v in n.meta.items()}) for n in program.graph.nodes
    ]
    return nodes, str(program.graph_signature), program.range_constraints, str(program.module_call_graph)


@pytest.mark.parametrize("name", MODELS)
def test_an_exported_program_is_the_one_of_torch(name: str) -> None:
    torch.manual_seed(0)
    model, example = MODELS[name][0](), MODELS[name][1]
    model.eval()(*example)  # a lazy layer
    found = []
    for _ in range(2):
        FakeTensorMode.cache_clear()
        found.append(told(torch.export.export(model, example)))
        FakeTensorMode.cache_clear()
        with sight.exports_at_sight(), graphs_left_unwritten():
            found.append(told(torch.export.export(model, example)))
    assert found[0] == found[1] == found[2] == found[3]
    lines = [node[2]["stack_trace"] for node in found[1][0] if "stack_trace" in node[2]]
    assert all("in forward" in line for line in lines)


def test_any_number_of_rows_is_left_to_torch() -> None:
    model, example = layers(), (torch.randn(2, 4, 9, 9),)
    model.eval()(*example)
    with sight.exports_at_sight():
        found = torch.export.export(model, example, dynamic_shapes=({0: Dim.AUTO},))
    assert told(found) == told(torch.export.export(model, example, dynamic_shapes=({0: Dim.AUTO},)))
    sizes = [size for n in found.graph.nodes if n.op == "placeholder" for size in n.meta["val"].shape]
    assert sum(isinstance(size, torch.SymInt) for size in sizes) == 1


def test_shapes_are_seen_where_they_are_plain_and_nowhere_else(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    usual = FakeTensorMode._dispatch_impl

    def noted(self: Any, func: Any, *args: Any, **kwargs: Any) -> Any:
        asked.append(func)
        return usual(self, func, *args, **kwargs)

    monkeypatch.setattr(FakeTensorMode, "_dispatch_impl", noted)
    FakeTensorMode.cache_clear()
    operators = (aten._native_batch_norm_legit_no_training.default, aten.hardtanh.default, aten.view.default)
    with sight.exports_at_sight():
        torch.export.export(layers_with_views().eval(), (PICTURE,))
        assert not set(operators) & set(asked)
        torch.export.export(layers_with_views().eval(), (PICTURE.to(memory_format=torch.channels_last),))
    assert set(operators) - {aten.view.default} <= set(asked)


def layers_with_views() -> nn.Module:
    return nn.Sequential(nn.BatchNorm2d(4), nn.ReLU6(), nn.Flatten())


def test_views_have_the_strides_of_torch() -> None:
    shapes = [s for rank in range(1, 5) for s in itertools.product((1, 2, 3, 6), repeat=rank)]
    mode = FakeTensorMode()
    for before in shapes[::7]:
        for after in shapes[::5]:
            if math.prod(before) != math.prod(after):
                continue
            with mode:
                x = torch.empty(before)
                usual = aten.view.default(x, list(after))
            seen = sight._view(mode, (x, list(after)))
            assert (seen.shape, seen.stride(), seen.device) == (usual.shape, usual.stride(), usual.device)
            assert seen.untyped_storage()._cdata == x.untyped_storage()._cdata


@pytest.mark.parametrize("channels", [3, 5])
def test_what_is_wrong_is_said_by_torch(channels: int) -> None:
    model = nn.BatchNorm2d(channels).eval()
    texts = []
    for at_sight in (False, True):
        with pytest.raises(Exception) as raised:
            if at_sight:
                with sight.exports_at_sight():
                    torch.export.export(model, (PICTURE,))
            else:
                torch.export.export(model, (PICTURE,))
        texts.append((type(raised.value), str(raised.value).splitlines()[0]))
    assert texts[0] == texts[1]


def test_other_threads_find_the_long_way_and_all_is_as_before() -> None:
    import torch.fx.proxy

    names = (FakeTensorMode._dispatch_impl, torch.fx.proxy.CapturedTraceback)
    with pytest.raises(ZeroDivisionError), sight.exports_at_sight(), sight.exports_at_sight():
        stack = torch.fx.proxy.CapturedTraceback.extract()
        assert isinstance(stack, sight._Stack)
        with ThreadPoolExecutor(1) as others:
            theirs = others.submit(torch.fx.proxy.CapturedTraceback.extract).result()
        assert isinstance(theirs, names[1])
        raise ZeroDivisionError
    assert (FakeTensorMode._dispatch_impl, torch.fx.proxy.CapturedTraceback) == names


def test_a_row_of_a_data_set_gives_no_symbols(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    data = torch.randn(5, 4, 9, 9)
    model = layers_with_views().eval()
    asked: list[Any] = []
    usual = ShapeEnv.evaluate_sym_node

    def noted(self: Any, *args: Any, **kwargs: Any) -> Any:
        asked.append(args)
        return usual(self, *args, **kwargs)

    monkeypatch.setattr(ShapeEnv, "evaluate_sym_node", noted)

    def nodes(row: torch.Tensor) -> list[str | None]:
        return [node.format_node() for node in export(model, (row,)).graph.nodes]

    apart = nodes(data[:1].clone())
    for row in (data[1:2], data[2].unsqueeze(0), data[:1].to(memory_format=torch.channels_last).contiguous()):
        assert nodes(row) == apart
    assert not asked

    class Sum(nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return x + y

    export(Sum().eval(), (data[:1], data[:1]))  # who shares memory stays as it is
    assert asked
