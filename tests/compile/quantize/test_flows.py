"""`compile`, `calibrate_and_quantize` and torchao's `prepare_pt2e` + `convert_pt2e` give the same qparams."""

from __future__ import annotations

import copy
import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests.compile.random_networks import RandomNetwork
from tests.compile.small import Small, conv, linear
from torch import nn
from torch.fx import GraphModule, Node
from torchao.quantization.pt2e import move_exported_model_to_eval, move_exported_model_to_train
from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e, prepare_qat_pt2e
from torchao.quantization.pt2e.quantizer import ComposableQuantizer, Quantizer

from micronpu.base.errors import MicroNpuError, ModelError
from micronpu.compiler.clock import Clock
from micronpu.compiler.quantized import quantized_methods
from micronpu.ethosu import calibrate_and_quantize
from micronpu.frontend.integers import to_integer_io
from micronpu.frontend.program import is_dequantize, is_dequantize_channel, is_quantize
from micronpu.quantize.data import HeldOut
from micronpu.quantize.qat import quantize_aware_training
from micronpu.quantize.quantizer import StaticQuantizer
from micronpu.targets.registry import device_for

BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
Rows = Sequence[tuple[torch.Tensor, ...]]
TARGETS = ("ethos-u55-128", "imxrt700", "cortex-m55", "ethos-u85-256")


def qparams(module: GraphModule) -> list[list[Any]]:
    """Arguments of each quantize and dequantize in the order of the program, those of weights behind the others."""
    activations, weights = [], []
    for node in module.graph.nodes:
        if is_quantize(node) or is_dequantize(node) or is_dequantize_channel(node):
            given = [getattr(module, str(a.target)).tolist() if isinstance(a, Node) else a for a in node.args[1:]]
            of_weights = any(n.op == "get_attr" for n in node.all_input_nodes)
            (weights if of_weights else activations).append([str(node.target), *given])
    return activations + weights


def exported(model: nn.Module, rows: Rows) -> torch.export.ExportedProgram:
    return torch.export.export(copy.deepcopy(model), rows[0])


def by_compile(model: nn.Module, rows: Rows, quantizer: StaticQuantizer) -> GraphModule:
    made = quantized_methods(
        {"": (model, rows[0])}, {"": quantizer}, {"": list(rows)}, Clock(None), held_out=HeldOut(held_out=0)
    )
    return made[""].module


def by_function(model: nn.Module, rows: Rows, quantizer: StaticQuantizer) -> GraphModule:
    return calibrate_and_quantize(exported(model, rows), list(rows), quantizer)


def prepared(model: nn.Module, rows: Rows, quantizer: Any) -> GraphModule:
    made = prepare_pt2e(exported(model, rows).module(), quantizer)
    for row in rows:
        made(*row)
    return made


def by_torchao(model: nn.Module, rows: Rows, quantizer: Any) -> GraphModule:
    return convert_pt2e(prepared(model, rows, quantizer))


def compared(model: nn.Module, rows: Rows, quantizer: Callable[[], StaticQuantizer]) -> int:
    """Asserts that the three flows agree; returns how many qparams there are."""
    wanted = qparams(by_compile(model, rows, quantizer()))
    modules = [flow(model, rows, quantizer()) for flow in (by_function, by_torchao)]
    if quantizer().io_config is not None:
        for module in modules:
            to_integer_io(module)
    function, found = map(qparams, modules)
    assert function == wanted
    if any(isinstance(part, BATCH_NORMS) for part in model.modules()):
        # torchao folds batch norms in float32 before it asks the quantizer, micronpu in float64.
        found, wanted = (sorted(q, key=lambda given: (repr(integers(given)), numbers(given))) for q in (found, wanted))
        assert list(map(integers, found)) == list(map(integers, wanted))
        assert list(itertools.chain(*map(numbers, found))) == pytest.approx(
            list(itertools.chain(*map(numbers, wanted))), rel=2e-6
        )
    else:
        assert found == wanted
    return len(wanted)


def numbers(given: list[Any]) -> list[float]:
    """The scales of a quantize or dequantize."""
    return [v for x in given for v in (x if isinstance(x, list) else [x]) if isinstance(v, float)]


def integers(given: list[Any]) -> list[Any]:
    """All but the scales."""
    return [x for x in given if not isinstance(x[0] if isinstance(x, list) else x, float)]


OF_CONSTANTS = (45, 61, 93, 141, 165)
"""Seeds of networks with an output that depends on no input, so that it is no integer."""


@pytest.mark.parametrize("seeds", [range(4), pytest.param(range(4, 200), marks=pytest.mark.slow)], ids=str)
def test_random_networks(seeds: range) -> None:
    count, refused = 0, []
    for seed in seeds:
        network = RandomNetwork(seed, 6)
        choices = {"activations": "int16"} if seed % 8 == 3 else {"io": "int8"} if seed % 8 == 5 else {}
        make = functools.partial(device_for("ethos-u85-256" if choices else TARGETS[seed % 4]).quantizer, **choices)
        try:
            count += compared(network, [network.inputs(i) for i in range(3)], make)
        except MicroNpuError:
            refused.append(seed)
    assert count >= 5 * len(seeds)
    assert refused == [seed for seed in OF_CONSTANTS if seed in seeds]


SIZES = torch.tensor([1.0, 0.03, 0.1, 0.3, 1.0, 0.02, 0.05, 0.5]).reshape(1, 8, 1)


def of_unequal_rows(count: int = 12) -> Rows:
    random = torch.Generator().manual_seed(0)
    return [(torch.randn(1, 8, 16, generator=random) * SIZES,) for _ in range(count)]


def of_images(count: int = 6) -> Rows:
    random = torch.Generator().manual_seed(0)
    return [(torch.randn(1, 8, 6, 6, generator=random),) for _ in range(count)]


def _joined(m: Small, x: torch.Tensor) -> Any:
    y = m.a(x)
    return torch.cat([y, m.b(x) * 64], 1), m.c(y)


def _masked(m: Small, x: torch.Tensor) -> Any:
    return x.masked_fill(x > 1, -torch.inf).softmax(-1), torch.maximum(x, m.a(x) * 8)


NETWORKS = {
    "a value that feeds a concat and a convolution": (
        Small(_joined, a=conv(), b=conv(8, 8, 1), c=conv(8, 4, 1)), of_images
    ),
    "norms over rows of unequal size": (
        Small(lambda m, x: (m.a(F.normalize(x, dim=-1)), F.layer_norm(x, (16,))), a=linear(16, 16)), of_unequal_rows
    ),
    "a mask, a softmax and a maximum": (
        Small(_masked, a=linear(16, 16)), of_unequal_rows
    ),
    "a batch norm": (
        Small(lambda m, x: F.relu(m.n(m.a(x))), a=conv(), n=nn.BatchNorm2d(8)), of_images
    ),
}  # fmt: skip


@pytest.mark.sweep
@pytest.mark.parametrize("target", ["ethos-u55-128", "imxrt700"])
@pytest.mark.parametrize("name", NETWORKS)
def test_what_calibration_decides(name: str, target: str) -> None:
    model, rows = NETWORKS[name]
    assert compared(model, rows(), device_for(target).quantizer)


JOINED = NETWORKS["a value that feeds a concat and a convolution"][0]


class Written(nn.Module):
    """Writes `write(y)` into y, and returns it beside what it has read before."""

    def __init__(self, write: Callable[[torch.Tensor], Any], before: Callable[[torch.Tensor], Any] = torch.neg) -> None:
        super().__init__()
        self.layer, self._write, self._before = linear(16, 16), write, before

    def forward(self, x: torch.Tensor) -> Any:
        y = self.layer(x)
        before = self._before(y)
        self._write(y)
        return y, before


def _part(y: torch.Tensor) -> None:
    y[:, :4] += 3


THROUGH_VIEWS = {
    "a slice": Written(_part),
    "a view of a view": Written(lambda y: y.view(-1, 2, 8)[:, 0].zero_()),
    "a view that was there before": Written(lambda y: y.add_(3), lambda y: y[:, :4]),
}


@pytest.mark.sweep
@pytest.mark.parametrize("model", THROUGH_VIEWS.values(), ids=THROUGH_VIEWS)
def test_writes_through_views_are_not_lost(model: nn.Module) -> None:
    rows = [(torch.randn(4, 16),) for _ in range(8)]
    with pytest.raises(ModelError, match=r"writes into a part of a tensor at .*test_flows.py:\d+"):
        prepared(model.eval(), rows, quantizer())
    made = prepare_pt2e(exported(model, rows).run_decompositions({}).module(), quantizer())
    for row in rows:
        made(*row)
    assert qparams(convert_pt2e(made)) == qparams(by_compile(model, rows, quantizer()))


IN_PLACE = {
    "with a reader before": Written(torch.relu_),
    "one after the other": Written(lambda y: y.relu_().add_(1)),
    "of a part that nobody else reads": Written(lambda y: y, lambda y: y.mul(2).view(-1, 8).relu_()),
    "of one of several results": Written(lambda y: y, lambda y: torch.max(y, 1, keepdim=True)[0].relu_()),
}


@pytest.mark.sweep
@pytest.mark.parametrize("model", IN_PLACE.values(), ids=IN_PLACE)
def test_other_writes_in_place(model: nn.Module) -> None:
    compared(model.eval(), [(torch.randn(4, 16),) for _ in range(8)], quantizer)


def quantizer() -> StaticQuantizer:
    return device_for("ethos-u55-128").quantizer()


@pytest.mark.parametrize("change", [copy.deepcopy, lambda made: made], ids=["copy", "none"])
def test_a_copy_of_a_prepared_module(change: Callable[[GraphModule], GraphModule]) -> None:
    wanted = qparams(by_function(JOINED, of_images(), quantizer()))
    assert qparams(convert_pt2e(change(prepared(JOINED, of_images(), quantizer())))) == wanted


def test_another_quantizer_around_ours() -> None:
    """As the recipes of ExecuTorch have it."""
    wanted = qparams(by_function(JOINED, of_images(), quantizer()))
    assert qparams(by_torchao(JOINED, of_images(), ComposableQuantizer([quantizer()]))) == wanted


def test_settings_that_change_after_preparation_are_for_the_next_model() -> None:
    mine = quantizer()
    made = prepared(JOINED, of_images(), mine)
    mine.set_operator("conv2d", None)
    assert qparams(convert_pt2e(made)) == qparams(by_function(JOINED, of_images(), quantizer()))


def test_an_observer_that_was_changed_by_hand_decides() -> None:
    made = prepared(JOINED, of_images(), quantizer())
    (first,) = (n for n in made.graph.nodes if n.op == "placeholder")
    observer = next(made.get_submodule(str(u.target)) for u in first.users if u.op == "call_module")
    observer.max_val.fill_(100.0)
    with pytest.warns(UserWarning, match="uses the observers alone"):
        assert qparams(convert_pt2e(made))[0][1] > 100 / 255


def test_a_checkpoint_of_a_calibrated_module() -> None:
    made = prepared(JOINED, of_images(), quantizer())
    fresh = prepare_pt2e(exported(JOINED, of_images()).module(), quantizer())
    fresh.load_state_dict(made.state_dict())
    with pytest.warns(UserWarning, match="uses the observers alone"):
        first = qparams(convert_pt2e(fresh))[0]
    images = torch.cat([image for (image,) in of_images()])
    assert first[1] == pytest.approx(float(images.max() - images.min()) / 255, rel=1e-6)  # a margin needs all calls


def test_quantizers_of_npu_and_core_compose() -> None:
    """As `ExportRecipe.combine` has them: the first one quantizes all that it knows."""
    several = [device_for(name).quantizer() for name in ("imxrt700", "cortex-m55")]
    assert all(isinstance(one, Quantizer) for one in several)
    wanted = qparams(by_function(JOINED, of_images(), device_for("imxrt700").quantizer()))
    assert qparams(by_torchao(JOINED, of_images(), ComposableQuantizer(several))) == wanted


def distinct(module: GraphModule) -> set[str]:
    return {str(given) for _, *given in qparams(module)}


class Trained(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.last = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(torch.relu(self.norm(self.conv(x))).mean((2, 3)))


def train(module: nn.Module) -> None:
    random = torch.Generator().manual_seed(0)
    optimizer = torch.optim.SGD(module.parameters(), 1e-2)
    for _ in range(3):
        optimizer.zero_grad()
        module(torch.randn(8, 3, 12, 12, generator=random)).pow(2).mean().backward()
        optimizer.step()


def test_a_checkpoint_of_a_trained_module() -> None:
    torch.manual_seed(0)
    model, x, saved = Trained().eval(), torch.randn(1, 3, 12, 12), dict[str, torch.Tensor]()

    def save(module: nn.Module) -> None:
        train(module)
        saved.update({name: value.clone() for name, value in module.state_dict().items()})

    def load(module: nn.Module) -> None:
        module.load_state_dict(saved)

    found = [
        quantize_aware_training(model, x, function, device_for("ethos-u55-128").quantizer(is_qat=True))
        for function in (save, load)
    ]
    assert qparams(found[0]) == qparams(found[1])


def test_training_by_torchao() -> None:
    torch.manual_seed(0)
    model, x = Trained().eval(), torch.randn(1, 3, 12, 12)
    mine = quantize_aware_training(model, x, train, device_for("imxrt700").quantizer(is_qat=True))
    dynamic = torch.export.export(model, (torch.cat([x, x]),), dynamic_shapes=({0: torch.export.Dim.AUTO},))
    made = prepare_qat_pt2e(dynamic.module(), device_for("imxrt700").quantizer(is_qat=True))
    move_exported_model_to_train(made)
    train(made)
    move_exported_model_to_eval(made)
    assert distinct(convert_pt2e(made)) == distinct(mine)
